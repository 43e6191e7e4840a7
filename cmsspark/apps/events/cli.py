"""``cmsspark lab events``: apply models of events to new files, and judge them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import click

from cmsspark.base.errors import UsageError
from cmsspark.base.text.progress_line import log
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.cli.groups import CommandGroup
from cmsspark.cli.options import DayType, require_store, store_options
from cmsspark.settings.settings import load_settings


@click.group("events", cls=CommandGroup)
def command() -> None:
    """Score events of ROOT files, judge models, show cutflows. Needs cmsspark[events].

    The jobs are run_spark events_prepare, events_sample, events_train, events_search
    and events_demo.
    """


@command.command("score")
@click.argument("files", nargs=-1, metavar="[FILE]…")
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), help="Folder of the model."
)
@click.option("-o", "--output", required=True, help="New folder for the scores, as Parquet.")
@click.option(
    "--stream",
    metavar="DIR",
    help="Score *.root files as they arrive in this folder, until Ctrl-C.",
)
@click.option(
    "--once", is_flag=True, help="With --stream: score what is there and was not scored, then end."
)
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two listings of the folder.",
)
@click.option(
    "--accept-damaged",
    "accepted",
    multiple=True,
    metavar="FILE",
    help="Leave this file out where damaged, or `all`.",
)
@click.option(
    "--tree", help="The TTree or RNTuple in the files. [default: that of the definition]"
)
@click.option(
    "--definition",
    metavar="NAME|FILE",
    help="Needed where the definition of the model has Python functions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def score_command(
    files: tuple[str, ...],
    model: Path,
    output: str,
    stream: str | None,
    once: bool,
    every: float,
    accepted: tuple[str, ...],
    tree: str | None,
    definition: str | None,
    as_json: bool,
) -> None:
    """Score the events of ROOT files: paths, globs, folders, lists (.txt), URLs.

    A row of the result: file, entry, event_hash, weight, a probability for each class,
    predicted class. Events that do not pass the selection have no row.
    """
    if bool(files) == bool(stream):
        raise UsageError("name files to score, or --stream DIR", next_step="give one of both")
    from cmsspark.apps.events import require_events
    from cmsspark.apps.events.models import load
    from cmsspark.apps.events.score_files import (
        ScoreRequest,
        check_new,
        definition_of_model,
        quiet_options,
        score_files,
        stream_scores,
    )
    from cmsspark.engines.session import session
    from cmsspark.filesystems.storage import LocalFiles, is_local

    require_events()
    load(model)  # a damaged model is an error before a JVM starts
    request = ScoreRequest(model.resolve(), definition_of_model(model, definition, tree), accepted)
    if not stream and is_local(output):
        check_new(LocalFiles(), output)
    spark = session("cmsspark lab events score", **quiet_options())
    if stream:
        stream_scores(spark, stream, request, output, once=once, seconds=every, log=log)
        click.echo(output)
        return
    done = score_files(spark, files, request, output)
    for file in done.left_out:
        log(f"warning: {file.path} is left out: {file.reason}")
    if as_json:
        left_out = [{"file": file.path, "reason": file.reason} for file in done.left_out]
        summary = {
            "output": output,
            "events": done.events,
            "selected": done.selected,
            "left_out": left_out,
        }
        click.echo(json.dumps(summary, indent=1))
        return
    log(f"{done.selected:,} of {pluralize(done.events, 'event')} scored")
    click.echo(output)


@command.command("evaluate")
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), help="Folder of the model."
)
@click.option(
    "--sample", required=True, type=click.Path(path_type=Path), help="Folder of the sample."
)
@click.option(
    "--part", default="test", show_default=True, help="The part to judge by: test, small_test."
)
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate_command(model: Path, sample: Path, part: str, as_json: bool) -> None:
    """Judge a model by a part of a sample, and write metrics, pictures, page and model
    card into its folder.
    """
    from cmsspark.apps.events.evaluation import shares
    from cmsspark.apps.events.models import load
    from cmsspark.apps.events.result_files import write_result
    from cmsspark.apps.events.root_files import sample_parts
    from cmsspark.apps.events.score_files import load_evaluation, local_predictions
    from cmsspark.base.errors import InputMissing

    loaded = load(model)
    parts = sample_parts(sample / part)
    if not parts:
        raise InputMissing(
            "no events to judge by", where=sample / part, next_step="run_spark events_sample"
        )
    evaluation = load_evaluation(model, local_predictions(loaded, parts))
    judged_by = f"{pluralize(evaluation.events, 'event')} of the part {part}"
    write_result(model, evaluation, {"sample": str(sample), "judged by": judged_by})
    if as_json:
        click.echo(json.dumps(evaluation.as_dict(), indent=1))
        return
    rows = [
        (name, f"{curve.auc:.4f}", *(f"{100 * share:.1f} %" for share in of_class))
        for name, curve, of_class in zip(
            evaluation.titles, evaluation.curves, shares(evaluation.confusion), strict=True
        )
    ]
    echo_table(
        ("true class", "AUC", *(f"as {name}" for name in evaluation.titles)), rows, texts=(0,)
    )
    log(
        f"AUC {evaluation.auc:.4f}, accuracy {evaluation.accuracy:.4f} on {pluralize(evaluation.events, 'event')}"
    )


@command.command("export")
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), help="Folder of the model."
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The file, such as model.onnx.",
)
def export_command(model: Path, output: Path) -> None:
    """Write a network as ONNX. Needs cmsspark[onnx]."""
    from cmsspark.apps.events.onnx_export import export_onnx

    export_onnx(model, output)
    click.echo(output)


@command.command("histograms")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--feature", "features", multiple=True, metavar="NAME", help="Only this feature; repeatable."
)
@click.option(
    "--bins",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Bins of a histogram.",
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="The range of a feature; repeatable.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for pictures and file.",
)
def histograms_command(
    folder: Path, features: tuple[str, ...], bins: int, ranges: tuple[str, ...], output: Path
) -> None:
    """Draw histograms of features by class with their weights, and write them into
    histograms.root.

    FOLDER has parts of events: train of a sample, or events of a run of events_prepare.
    """
    from cmsspark.apps.events import require_events
    from cmsspark.apps.events.evaluation import fill_histograms, write_histograms
    from cmsspark.apps.events.root_files import sample_parts
    from cmsspark.base.errors import InputMissing

    require_events("hist")
    if not sample_parts(folder):
        raise InputMissing(
            "no parts of events",
            where=folder,
            next_step="name train of a sample, or events of a run",
        )
    limits = dict(map(_parse_range, ranges))
    paths = write_histograms(folder, output, fill_histograms(folder, features, bins, limits))
    log(f"{pluralize(len(paths) - 1, 'picture')} and {paths[0].name}")
    click.echo(output)


def _parse_range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, limits = text.partition("=")
    low, _, high = limits.partition(":")
    try:
        limit = (float(low), float(high))
    except ValueError:
        limit = (0.0, 0.0)
    if not name or not float("-inf") < limit[0] < limit[1] < float("inf"):
        raise UsageError(
            "--range has the form NAME=LOW:HIGH", found=repr(text), next_step="--range MET=0:200"
        )
    return name, limit


@command.command("cutflow")
@click.option(
    "--date", "day", type=DayType(), help="The day that names the result. [default: the newest]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@store_options
def cutflow_command(
    day: date | None, as_json: bool, fout: str | None, settings_file: str | None
) -> None:
    """Show what became of the events that were prepared: each step of the selection by class."""
    from cmsspark.apps.events import prepare
    from cmsspark.apps.events.runs import latest_run
    from cmsspark.store import results
    from cmsspark.store.stored_columns import open_store

    store = require_store(fout, load_settings(settings_file))
    files = open_store(store, "cmsspark lab events cutflow")
    if day is None:
        run = latest_run(files, store, prepare.NAME, prepare.TABLE, date.max)
    else:
        run = results.current(files, store, prepare.NAME, prepare.TABLE, day)
    flow = run.manifest.document["cutflow"]
    if as_json:
        click.echo(json.dumps(flow, indent=1))
        return
    headings, rows = prepare.cutflow_lines(flow)
    echo_table(headings, rows, texts=(0,))
