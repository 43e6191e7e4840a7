"""``cmsspark lab events``: apply models of events to new files, and judge them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import click

from cmsspark.base.errors import UsageError
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.progress_line import log
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.groups import CommandGroup
from cmsspark.cli.options import DayType, settings_of, store_of, store_options


@click.group("events", cls=CommandGroup)
def command() -> None:
    """Score events of ROOT files, judge models, show cutflows. Needs cmsspark[events].

    The jobs are run_spark events_prepare, events_sample, events_train, events_search and events_demo.
    """


@command.command("score")
@click.argument("files", nargs=-1, metavar="[FILE]…")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="Folder of the model.")
@click.option("-o", "--output", required=True, help="New folder for the scores, as Parquet.")
@click.option("--stream", metavar="DIR", help="Score *.root files as they arrive in this folder, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --stream: score what is there and was not scored, then end.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two listings of the folder.",
)
@click.option(
    "--accept-damaged", "accepted", multiple=True, metavar="FILE", help="Leave this file out where damaged, or `all`."
)
@click.option("--tree", default="Delphes", show_default=True, help="The tree in the files.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def score_command(
    files: tuple[str, ...], model: Path, output: str, stream: str | None, once: bool, every: float,
    accepted: tuple[str, ...], tree: str, as_json: bool,
) -> None:  # fmt: skip
    """Score the events of ROOT files: paths, globs, folders, lists (.txt), URLs.

    A row of the result: file, entry, event_hash, probabilities qcd, ttbar and wjets, predicted class. Events that do
    not pass the selection have no row.
    """
    if bool(files) == bool(stream):
        raise UsageError("files to score are wanted, or --stream DIR", next_step="give one of both")
    from cmsspark.apps.events.jit import require_events
    from cmsspark.apps.events.models import load
    from cmsspark.apps.events.score_files import ScoreRequest, check_new, quiet_options, score_files, stream_scores
    from cmsspark.engines.session import session
    from cmsspark.filesystems.storage import LocalFiles, is_local

    require_events()
    load(model)  # a damaged model is an error before a JVM starts
    request = ScoreRequest(model.resolve(), tree, accepted)
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
        summary = {"output": output, "events": done.events, "selected": done.selected, "left_out": left_out}
        click.echo(json.dumps(summary, indent=1))
        return
    log(f"{done.selected:,} of {number_of(done.events, 'event')} scored")
    click.echo(output)


@command.command("evaluate")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="Folder of the model.")
@click.option("--sample", required=True, type=click.Path(path_type=Path), help="Folder of the sample.")
@click.option("--part", default="test", show_default=True, help="The part to judge by: test, small_test.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate_command(model: Path, sample: Path, part: str, as_json: bool) -> None:
    """Judge a model by a part of a sample, and write metrics, pictures, page and model card into its folder."""
    from cmsspark.apps.events.evaluation import evaluate
    from cmsspark.apps.events.layout import CLASS_TITLES
    from cmsspark.apps.events.models import load
    from cmsspark.apps.events.parts import sample_parts
    from cmsspark.apps.events.result_files import write_result
    from cmsspark.apps.events.scoring import local_predictions
    from cmsspark.base.errors import InputMissing

    loaded = load(model)
    parts = sample_parts(sample / part)
    if not parts:
        raise InputMissing("a part of a sample is wanted", where=sample / part, next_step="run_spark events_sample")
    evaluation = evaluate(*local_predictions(loaded, parts))
    write_result(model, evaluation, {"sample": str(sample)})
    if as_json:
        click.echo(json.dumps(evaluation.as_dict(), indent=1))
        return
    rows = [
        (name, f"{curve.auc:.4f}", *(f"{100 * share:.1f} %" for share in counts / max(1, counts.sum())))
        for name, curve, counts in zip(CLASS_TITLES, evaluation.curves, evaluation.confusion, strict=True)
    ]
    echo_table(("true class", "AUC", *(f"as {name}" for name in CLASS_TITLES)), rows, left=(0,))
    log(f"AUC {evaluation.auc:.4f}, accuracy {evaluation.accuracy:.4f} on {number_of(evaluation.events, 'event')}")


@command.command("cutflow")
@click.option("--date", "day", type=DayType(), help="The day that names the result. [default: the newest]")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@store_options
def cutflow_command(day: date | None, as_json: bool, fout: str | None, settings_file: str | None) -> None:
    """Show what became of the events that were prepared: each step of the selection by class."""
    from cmsspark.apps.events import prepare
    from cmsspark.apps.events.runs import latest_run
    from cmsspark.base import dates
    from cmsspark.store.stored_columns import files_of

    store = store_of(fout, settings_of(settings_file))
    files = files_of(store, "cmsspark lab events cutflow")
    found = latest_run(files, store, prepare.NAME, prepare.TABLE, day or dates.today())
    flow = found.manifest.document["cutflow"]
    if as_json:
        click.echo(json.dumps(flow, indent=1))
        return
    headings, rows = prepare.cutflow_lines(flow)
    echo_table(headings, rows, left=(0,))
