"""``events_train``: models learn from a sample, are judged by its part ``test``, and
are stored with their report.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.events.evaluation import Evaluation
from cmsspark.apps.events.layout import layout_in
from cmsspark.apps.events.models import NETWORKS, ForestModel, read_description, write_model
from cmsspark.apps.events.result_files import write_history, write_result
from cmsspark.apps.events.root_files import read_events
from cmsspark.apps.events.runs import EventRequest, event_run, finish
from cmsspark.apps.events.sample import TEST, TRAIN
from cmsspark.apps.events.sample_use import StoredSample, find_sample, on_this_host, put_folder
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.score_files import judge
from cmsspark.apps.events.tree_training import (
    fit_xgboost,
    parse_parameters,
    train_with_spark,
    vectors,
)
from cmsspark.base import dates
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import Files, is_local, join, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.store.results import CurrentTable
    from cmsspark.store.staged_runs import StagedRun

NAME: Final = "events_train"
TABLE: Final = "event_models"
#: The folder of a run with a folder for each model.
FOLDER: Final = "models"


#: Trains a network: the session, the folder of the sample on hosts of workers, the
#: kind, the seed, the folder of the model to write. A job gives it, as it starts
#: workers by another room.
NetworkTrainer = Callable[["SparkSession", Path, str, int, Path], None]


@dataclass(frozen=True)
class TrainOptions:
    """What to train: kinds of models, ``NAME=VALUE`` parameters of trees, and what
    trains networks.
    """

    kinds: Sequence[str] = ("xgboost",)
    parameters: tuple[str, ...] = ()
    seed: int = 0
    networks: NetworkTrainer | None = None


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained and judged, in a folder of this host."""

    kind: str
    folder: Path
    evaluation: Evaluation
    seconds: float


def run(request: EventRequest, options: TrainOptions) -> CurrentTable:
    """Train the models and store them; on any failure the previous result stays.

    Raises InputMissing (66) without a sample, DataError (65), UsageError (2), OutputError (73).
    """
    kinds = list(dict.fromkeys(options.kinds))
    for kind in kinds:
        if kind not in NETWORKS and len(kinds) == 1:
            parse_parameters(kind, options.parameters)
    if len(kinds) > 1 and options.parameters:
        raise UsageError(
            "--set needs one --model",
            found=", ".join(kinds),
            next_step="train the models one by one",
        )
    with (
        event_run(request, NAME) as (run_context, store, spark),
        run_context.staged(store) as staged,
        tempfile.TemporaryDirectory(prefix="cmsspark-models-") as aside,
    ):
        sample = find_sample(store, request.fout, request.day)
        trained = []
        for kind in kinds:
            folder = Path(aside, kind)
            began = time.monotonic()
            train_model(spark, store, staged, sample, kind, folder, options)
            seconds = time.monotonic() - began
            evaluation = judge(spark, folder, sample.parts(store, TEST))
            write_result(folder, evaluation, sample.facts())
            put_folder(store, folder, join(staged.folder, FOLDER, kind))
            trained.append(TrainedModel(kind, folder, evaluation, seconds))
            run_context.log(
                f"{kind}: AUC {evaluation.auc:.4f}, accuracy {evaluation.accuracy:.4f}, {seconds:.1f} s"
            )
        staged.write_arrow(_table(trained, sample, request), TABLE)
        manifest = {**sample.manifest(), "folders": {f"{FOLDER}/{kind}": {} for kind in kinds}}
        outcome = f"{len(trained)} model{'s' if len(trained) > 1 else ''} in {join(staged.folder, FOLDER)}"
        return finish(run_context, staged, manifest, [], outcome)


def train_model(
    spark: SparkSession,
    store: Files,
    staged: StagedRun,
    sample: StoredSample,
    kind: str,
    folder: Path,
    options: TrainOptions,
) -> None:
    """Train one model and write it into ``folder``. Raises UsageError (2) for
    parameters that it does not have.
    """
    if kind in NETWORKS:
        _train_network(spark, sample, kind, folder, options)
        return
    parameters = parse_parameters(kind, options.parameters)
    if kind == "xgboost":
        with on_this_host(store, sample.folder, (TRAIN,)) as local:
            model, history = fit_xgboost(
                read_events(local / TRAIN), Scalers.load(local), parameters, options.seed, 0
            )
            write_model(folder, model, parameters, options.seed, local)
            write_history(folder, history)
        return
    from cmsspark.store.results import spark_location

    with on_this_host(store, sample.folder, ()) as local:
        layout = layout_in(local)
        rows = vectors(spark, join(sample.folder, TRAIN), Scalers.load(local)).persist()
        scratch, classes = join(staged.folder, f"_{kind}"), len(layout.classes)
        try:
            trees = train_with_spark(
                spark, kind, rows, spark_location(scratch), parameters, options.seed, classes
            )
        finally:
            rows.unpersist()
            store.delete(scratch)
        write_model(folder, ForestModel(kind, trees, layout), parameters, options.seed, local)


def _train_network(
    spark: SparkSession, sample: StoredSample, kind: str, folder: Path, options: TrainOptions
) -> None:
    """Train a network, and write it into ``folder``. Raises UsageError (2) for a sample
    that workers cannot open.
    """
    if options.networks is None:
        raise UsageError(
            f"a {kind} network is trained by workers",
            next_step=f"run_spark events_train --model {kind}",
        )
    if not is_local(sample.folder):
        raise UsageError(
            "networks learn from a sample on a file system that all hosts mount",
            where=sample.folder,
            next_step="copy the sample there, and train with cmsspark lab train run",
        )
    if kind != "hlf" and not sample.low_level:
        raise DataError(
            f"a {kind} network reads the matrix of particles",
            where=sample.folder,
            found="a sample without it",
            next_step="run_spark events_prepare --low-level, then events_sample",
        )
    options.networks(spark, Path(local_path(sample.folder)), kind, options.seed, folder)


def _table(trained: Sequence[TrainedModel], sample: StoredSample, request: EventRequest) -> Any:
    import pyarrow as pa

    rows = []
    for model in trained:
        description, judged = read_description(model.folder), model.evaluation
        rows.append(
            {
                "day": request.day,
                "kind": model.kind,
                "parameters": json.dumps(description.get("parameters", {})),
                "seed": description.get("seed", 0),
                "train_count": sample.counts[TRAIN],
                "test_count": judged.events,
                "auc": judged.auc,
                "auc_by_class": json.dumps(judged.auc_by_class),
                "accuracy": judged.accuracy,
                "log_loss": judged.log_loss,
                "train_seconds": round(model.seconds, 1),
                "timestamp": dates.start_ms(request.day),
            }
        )
    return pa.Table.from_pylist(rows, stored_table(TABLE).arrow())
