"""``cmsspark lab events``: apply models of events to new files, and judge them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from click import FloatRange, IntRange, option

from cmsspark.apps.events.layout import NETWORKS, read_description
from cmsspark.apps.events.networks import GRU_WIDTH, HIDDEN, Network, load
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base import extras
from cmsspark.base.arrays import Array
from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.text.progress_line import log
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.cli.options import CommandGroup, DayType, require_store, store_options
from cmsspark.settings.settings import load_settings

_PATH: Final = click.Path(path_type=Path)
_model = option("--model", required=True, type=_PATH, help="Folder of the model.")
_json = option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")


@click.group("events", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Score events of ROOT files, judge models, show cutflows. Needs cmsspark[events].

    The jobs are run_spark events_prepare, events_sample, events_train, events_search
    and events_demo.
    """


@command.command("score")
@click.argument("files", nargs=-1, metavar="[FILE]…")
@_model
@option("-o", "--output", required=True, help="New folder for the scores, as Parquet.")
@option(
    "--stream",
    metavar="DIR",
    help="Score *.root files as they arrive in this folder, until Ctrl-C.",
)
@option(
    "--once", is_flag=True, help="With --stream: score what is there and was not scored, then end."
)
@option(
    "--every",
    type=FloatRange(0.1),
    default=10.0,
    help="Seconds between two listings of the folder.",
)
@option(
    "--accept-damaged",
    "accepted",
    multiple=True,
    metavar="FILE",
    help="Leave this file out where damaged, or `all`.",
)
@option("--tree", help="The TTree or RNTuple in the files. [default: that of the definition]")
@option(
    "--definition",
    metavar="NAME|FILE",
    help="Needed where the definition of the model has Python functions.",
)
@_json
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
@_model
@option("--sample", required=True, type=_PATH, help="Folder of the sample.")
@option("--part", default="test", help="The part to judge by: test, small_test.")
@_json
def evaluate_command(model: Path, sample: Path, part: str, as_json: bool) -> None:
    """Judge a model by a part of a sample, and write metrics, pictures, page and model
    card into its folder.
    """
    from cmsspark.apps.events.evaluation import shares, write_result
    from cmsspark.apps.events.models import load
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
@_model
@option("-o", "--output", required=True, type=_PATH, help="The file, such as model.onnx.")
def export_command(model: Path, output: Path) -> None:
    """Write a network as ONNX. Needs cmsspark[onnx]."""

    export_onnx(model, output)
    click.echo(output)


@command.command("histograms")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@option(
    "--feature", "features", multiple=True, metavar="NAME", help="Only this feature; repeatable."
)
@option("--bins", type=IntRange(1, 10_000), default=50, help="Bins of a histogram.")
@option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="The range of a feature; repeatable.",
)
@option("-o", "--output", required=True, type=_PATH, help="Folder for pictures and file.")
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
@option(
    "--date", "day", type=DayType(), help="The day that names the result. [default: the newest]"
)
@_json
@store_options
def cutflow_command(
    day: date | None, as_json: bool, fout: str | None, settings_file: str | None
) -> None:
    """Show what became of the events that were prepared: each step of the selection by class."""
    from cmsspark.apps.events import prepare
    from cmsspark.store import results
    from cmsspark.store.stored_columns import newest, open_store

    store = require_store(fout, load_settings(settings_file))
    files = open_store(store, "cmsspark lab events cutflow")
    if day is None:
        _, run = newest(files, store, prepare.TABLE)
    else:
        run = results.current(files, store, prepare.NAME, prepare.TABLE, day)
    flow = run.manifest.document["cutflow"]
    if as_json:
        click.echo(json.dumps(flow, indent=1))
        return
    headings, rows = prepare.cutflow_lines(flow)
    echo_table(headings, rows, texts=(0,))


# Networks of events as ONNX, for inference without this package: graphs in ONNX's own
# text. onnx is imported only where it is asked for.

_MODEL: Final = """<ir_version: 8, opset_import: ["" : 17], producer_name: "cmsspark">
{kind} ({inputs}) => (float[n, {classes}] probabilities) {{
{nodes}
probabilities = Softmax <axis = -1> (out)
}}"""
#: By the smallest and the largest value; constant features become 0.
_BY_RANGE: Final = """shifted = Sub(hlf, minimum)
features = Mul(shifted, factor)"""
#: A curve is the sum of its segments: how far a value is in each, times its slope.
_BY_CURVES: Final = """value = Unsqueeze(hlf, axis)
above = Max(value, low)
within = Min(above, high)
way = Sub(within, low)
rise = Mul(way, slopes)
risen = ReduceSum <keepdims = 0> (rise, axis)
{} = Add(risen, start)"""
_WITH_SENTINELS: Final = """is_absent = Equal(hlf, sentinels)
measured = Where(is_absent, none, scaled)
all_flags = Cast <to = 1> (is_absent)
flags = Gather <axis = 1> (all_flags, with_sentinel)
features = Concat <axis = -1> (measured, flags)"""
_GRU: Final = f"""by_particle = Transpose <perm = [1, 0, 2]> (sequence)
, last = GRU <hidden_size = {GRU_WIDTH}, linear_before_reset = 1> (by_particle, gru_weight, gru_state, gru_bias, particles)
state = Squeeze(last, direction)"""
_BOTH: Final = "both = Concat <axis = -1> (state, features)"


def export_onnx(folder: Path, output: Path) -> None:
    """Write the network of a model's folder as an ONNX file.

    Raises UsageError (2) for trees and without onnx, InputMissing (66), DataError (65),
    OutputError (73).
    """
    kind = str(read_description(folder)["kind"])
    if kind not in NETWORKS:
        raise UsageError(
            f"networks can be written as ONNX, not {kind}",
            where=folder,
            next_step="read xgboost.ubj with XGBoost itself",
        )
    extras.require("models as ONNX need", "onnx", extra="onnx")
    import onnx

    model = _onnx_model(load(folder))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, str(output))
    except OSError as error:
        raise OutputError(
            "the model cannot be written", where=output, found=error.strerror
        ) from None


def _onnx_model(network: Network) -> Any:
    """Return the checked model."""
    from onnx import checker, helper, numpy_helper, parser

    kind, layout = network.kind, network.layout
    inputs, parts = [], []
    constants: dict[str, Any] = {
        name.replace("/", "_"): value for name, value in network.weights.items()
    }
    if kind != "sequence":
        inputs.append(f"float[n, {layout.hlf_count}] hlf")
        of_features, text = _scale(network.scalers)
        constants |= of_features
        parts.append(text)
    if network.needs_low_level:
        inputs += [f"float[n, length, {len(layout.columns)}] sequence", "int32[n] particles"]
        constants |= _gru_weights(network.weights)
        parts.append(_GRU)
    if kind == "hlf":
        names = ["features", *(f"relu{number}" for number in range(len(HIDDEN)))]
        for number in range(len(HIDDEN)):
            parts += [
                _dense(f"dense{number}", names[number]),
                f"relu{number} = Relu(dense{number})",
            ]
        parts.append(_dense("out", names[-1]))
    elif kind == "sequence":
        parts.append(_dense("out", "state"))
    else:
        parts += [_BOTH, _dense("dense", "both"), "relu = Relu(dense)", _dense("out", "relu")]
    text = _MODEL.format(
        kind=kind, inputs=", ".join(inputs), classes=len(layout.classes), nodes="\n".join(parts)
    )
    model = parser.parse_model(text)
    for name, value in constants.items():
        is_index = np.asarray(value).dtype.kind == "i"
        array = np.ascontiguousarray(value, np.int64 if is_index else np.float32)
        if any(name in node.input for node in model.graph.node):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    facts = {
        "classes": layout.class_names,
        "features": layout.feature_names,
        "columns": layout.columns,
    }
    helper.set_model_props(model, {name: ",".join(values) for name, values in facts.items()})
    checker.check_model(model)
    return model


def _dense(name: str, values: str) -> str:
    return f"{name} = Gemm({values}, {name}_weight, {name}_bias)"


def _scale(scalers: Scalers) -> tuple[dict[str, Any], str]:
    """Return the constants and the nodes of ``features``: :meth:`Scalers.inputs`."""
    if scalers.curves is None:
        span = scalers.maximum - scalers.minimum
        factor = np.where(span > 0, 1 / np.where(span > 0, span, 1.0), 0.0)
        return {"minimum": scalers.minimum, "factor": factor}, _BY_RANGE
    most = max(len(curve.knots) for curve in scalers.curves)
    knots, heights = (
        np.stack([np.pad(values, (0, most - len(values) + 1), "edge") for values in lists])
        for lists in zip(*((c.knots, c.heights) for c in scalers.curves), strict=True)
    )
    width = np.diff(knots)
    slopes = np.where(width > 0, np.diff(heights) / np.where(width > 0, width, 1.0), 0.0)
    constants = {"axis": np.array([2]), "low": knots[:, :-1], "high": knots[:, 1:]}
    constants |= {"slopes": slopes, "start": heights[:, 0]}
    if not (sentinels := scalers.sentinels):
        return constants, _BY_CURVES.format("features")
    absent = np.full(len(scalers.curves), np.nan)
    absent[list(sentinels)] = [curve.sentinel for curve in sentinels.values()]
    constants |= {
        "sentinels": absent,
        "none": np.zeros(1),
        "with_sentinel": np.array([*sentinels]),
    }
    return constants, f"{_BY_CURVES.format('scaled')}\n{_WITH_SENTINELS}"


def _gru_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of the GRU. ONNX has the update gate first, we the reset gate."""

    def gates(name: str) -> Array:
        reset, update, new = np.split(np.asarray(weights[name]), 3, axis=-1)
        return np.concatenate([update, reset, new], axis=-1)

    return {
        "gru_weight": gates("gru/weight").T[None],
        "gru_state": gates("gru/state").T[None],
        "gru_bias": np.concatenate([gates("gru/bias"), gates("gru/state_bias")])[None],
        "direction": np.array([0]),
    }
