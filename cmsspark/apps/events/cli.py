"""``cmsspark lab events``: apply models of events to new files, and judge them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from cmsspark.apps.events.models import NETWORKS, read_description
from cmsspark.apps.events.networks import GRU_WIDTH, HIDDEN, Network, load
from cmsspark.base import extras
from cmsspark.base.arrays import Array
from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.text.progress_line import log
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.cli.options import CommandGroup, DayType, require_store, store_options
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


# Networks of events as ONNX, for inference without this package; onnx is imported only
# where it is asked for.

_OPSET: Final = 17
_IR_VERSION: Final = 8


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

    model = _Graph(load(folder)).model()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, str(output))
    except OSError as error:
        raise OutputError(
            "the model cannot be written", where=output, found=error.strerror
        ) from None


class _Graph:
    """The nodes and weights of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.weights = {
            name: np.asarray(value, np.float32) for name, value in network.weights.items()
        }
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def model(self) -> Any:
        """Return the checked model."""
        from onnx import TensorProto, checker, helper, numpy_helper

        network, layout = self.network, self.network.layout
        inputs = []
        if network.kind != "sequence":
            inputs.append(
                helper.make_tensor_value_info("hlf", TensorProto.FLOAT, ["n", layout.hlf_count])
            )
        if network.needs_low_level:
            shape = ["n", "length", len(layout.columns)]
            inputs.append(helper.make_tensor_value_info("sequence", TensorProto.FLOAT, shape))
            inputs.append(helper.make_tensor_value_info("particles", TensorProto.INT32, ["n"]))
        self._node("Softmax", [self._logits()], "probabilities", axis=-1)
        shape = ["n", len(layout.classes)]
        graph = helper.make_graph(
            self.nodes,
            network.kind,
            inputs,
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="cmsspark"
        )
        facts = {
            "classes": layout.class_names,
            "features": layout.feature_names,
            "columns": layout.columns,
        }
        helper.set_model_props(model, {name: ",".join(values) for name, values in facts.items()})
        checker.check_model(model)
        return model

    def _logits(self) -> str:
        kind = self.network.kind
        if kind == "hlf":
            name = self._scaled_hlf()
            for number in range(len(HIDDEN)):
                name = self._node("Relu", [self._dense(f"dense{number}", name)], f"relu{number}")
            return self._dense("out", name)
        state = self._gru()
        if kind == "inclusive":
            both = self._node("Concat", [state, self._scaled_hlf()], "both", axis=-1)
            state = self._node("Relu", [self._dense("dense", both)], "relu")
        return self._dense("out", state)

    def _scaled_hlf(self) -> str:
        """Return the features as :meth:`Scalers.inputs` has them."""
        scalers = self.network.scalers
        if scalers.curves is None:
            # Constant features become 0.
            span = scalers.maximum - scalers.minimum
            factor = np.where(span > 0, 1 / np.where(span > 0, span, 1.0), 0.0)
            minimum = self._constant("minimum", scalers.minimum)
            shifted = self._node("Sub", ["hlf", minimum], "shifted")
            return self._node("Mul", [shifted, self._constant("scale", factor)], "scaled")
        # A curve is the sum of its segments: how far a value is in each, times its slope.
        most = max(len(curve.knots) for curve in scalers.curves)
        knots, heights = (
            np.stack([np.pad(values, (0, most - len(values) + 1), "edge") for values in lists])
            for lists in zip(*((c.knots, c.heights) for c in scalers.curves), strict=True)
        )
        width = np.diff(knots)
        slopes = np.where(width > 0, np.diff(heights) / np.where(width > 0, width, 1.0), 0.0)
        low = self._constant("low", knots[:, :-1])
        axis = self._constant("axis", np.array([2]), np.int64)
        value = self._node("Unsqueeze", ["hlf", axis], "value")
        value = self._node("Max", [value, low], "above")
        value = self._node("Min", [value, self._constant("high", knots[:, 1:])], "within")
        value = self._node("Sub", [value, low], "way")
        value = self._node("Mul", [value, self._constant("slopes", slopes)], "rise")
        value = self._node("ReduceSum", [value, axis], "risen", keepdims=0)
        value = self._node("Add", [value, self._constant("start", heights[:, 0])], "scaled")
        if not (sentinels := scalers.sentinels):
            return value
        absent = np.full(len(scalers.curves), np.nan)
        absent[list(sentinels)] = [curve.sentinel for curve in sentinels.values()]
        is_absent = self._node("Equal", ["hlf", self._constant("sentinels", absent)], "is_absent")
        measured = self._node(
            "Where", [is_absent, self._constant("none", [0.0]), value], "measured"
        )
        flags = self._node("Cast", [is_absent], "all_flags", to=1)
        numbers = self._constant("with_sentinel", list(sentinels), np.int64)
        flags = self._node("Gather", [flags, numbers], "flags", axis=1)
        return self._node("Concat", [measured, flags], "inputs", axis=-1)

    def _gru(self) -> str:
        """Return the state after the last particle. ONNX has the update gate first, we
        the reset gate.
        """

        def gates(name: str) -> Array:
            reset, update, new = np.split(self.weights[name], 3, axis=-1)
            return np.concatenate([update, reset, new], axis=-1)

        biases = np.concatenate([gates("gru/bias"), gates("gru/state_bias")])[None]
        inputs = [
            self._node("Transpose", ["sequence"], "by_particle", perm=[1, 0, 2]),
            self._constant("gru_weight", gates("gru/weight").T[None]),
            self._constant("gru_state", gates("gru/state").T[None]),
            self._constant("gru_bias", biases),
            "particles",
        ]
        self._node("GRU", inputs, "", "last", hidden_size=GRU_WIDTH, linear_before_reset=1)
        return self._node(
            "Squeeze", ["last", self._constant("direction", np.array([0]), np.int64)], "state"
        )

    def _dense(self, name: str, values: str) -> str:
        weight, bias = (
            self._constant(f"{name}_{part}", self.weights[f"{name}/{part}"])
            for part in ("weight", "bias")
        )
        return self._node("Gemm", [values, weight, bias], f"{name}_sum")

    def _constant(self, name: str, value: Any, kind: Any = np.float32) -> str:
        self.constants[name] = np.ascontiguousarray(value, kind)
        return name

    def _node(self, kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, list(outputs), **attributes))
        return outputs[-1]
