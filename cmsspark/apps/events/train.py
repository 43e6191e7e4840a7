"""``events_train``: models learn from a sample, are judged by its part ``test``, and
are stored with their report.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events import sample
from cmsspark.apps.events.evaluation import Evaluation, write_history, write_result
from cmsspark.apps.events.layout import NETWORKS, SCALERS_FILE, SCHEMA_FILE, read_description
from cmsspark.apps.events.models import XgboostModel, require_xgboost
from cmsspark.apps.events.root_files import Events, read_events
from cmsspark.apps.events.runs import EventRequest, event_run, find_run_folder, finish
from cmsspark.apps.events.sample import TEST, TRAIN
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.score_files import judge
from cmsspark.base import dates
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import Entry, Files, is_local, join, local_path
from cmsspark.store.part_files import list_parts
from cmsspark.store.stored_columns import newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.store.results import CurrentTable


# A stored sample as jobs that learn from it see it: its folder, its counts, and copies
# on this host.


@dataclass(frozen=True)
class StoredSample:
    """A sample of the store: ``folder`` is its run's. ``counts``: events of train and test."""

    folder: str
    run: str
    low_level: bool
    seed: int
    counts: dict[str, int]

    def parts(self, files: Files, part: str) -> list[Entry]:
        """Return the part files of ``train`` or ``test``."""
        return list_parts(files, join(self.folder, part))

    def facts(self, learned: int | None = None) -> dict[str, str]:
        """Return what a model card says of the sample; ``learned``: the events that
        were read, if not all of train.
        """
        return {
            "sample": f"run {self.run}, seed {self.seed}, equal classes",
            "learned from": f"{self.counts[TRAIN] if learned is None else learned:,} events of the part train",
            "judged by": f"{self.counts[TEST]:,} events of the part test, none of which was learned from",
        }

    def manifest(self) -> dict[str, Any]:
        """Return what a manifest says of the sample."""
        inputs = [
            {
                "stream": None,
                "table": sample.TABLE,
                "folder": self.folder,
                "files": [[self.run, None, None]],
            }
        ]
        return {"sample": {"folder": self.folder, "run": self.run}, "inputs": inputs}


def find_sample(files: Files, fout: str, until: date) -> StoredSample:
    """Return the newest sample of a store up to a day. Raises InputMissing (66), DataError (65)."""
    _, run = newest(files, fout, sample.TABLE, until)
    document = run.manifest.document
    counts = {name: int(document["folders"][name]["rows"]) for name in (TRAIN, TEST)}
    about = document["sample"]
    return StoredSample(
        find_run_folder(run), run.manifest.run, about["low_level"], about["seed"], counts
    )


@contextmanager
def on_this_host(files: Files, folder: str, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the folder of a sample as one of this host, with its scalers and the given
    parts, copied if it is elsewhere.
    """
    if is_local(folder):
        yield Path(local_path(folder))
        return
    with tempfile.TemporaryDirectory(prefix="cmsspark-sample-") as aside:
        # By its name a training that was killed finds its checkpoints.
        local = Path(aside, folder.rstrip("/").rpartition("/")[2])
        local.mkdir()
        for name in (SCALERS_FILE, SCHEMA_FILE):
            if files.stat(join(folder, name)) is not None:
                files.fetch(join(folder, name), local / name)
        for part in parts:
            (local / part).mkdir()
            for entry in list_parts(files, join(folder, part)):
                files.fetch(entry.path, local / part / entry.name)
        yield local


def put_folder(files: Files, source: Path, target: str) -> None:
    """Copy the files of a folder of this host into the store. Raises OutputError (73)."""
    files.make_dirs(target)
    for path in sorted(source.iterdir()):
        if path.is_file():
            files.put(path, join(target, path.name))


# Training of trees on high-level features by XGBoost: a random forest, and boosting.

#: The parameters of each kind, with their defaults.
PARAMETERS: Final[Mapping[str, Mapping[str, float]]] = {
    "forest": {"trees": 100, "depth": 10, "min_child_weight": 1.0, "subsample": 0.63},
    "xgboost": {
        "trees": 300,
        "depth": 5,
        "rate": 0.1,
        "min_child_weight": 1.0,
        "subsample": 1.0,
        "patience": 20,
    },
}
#: Share of the events to learn from that decides when boosting stops, and which of
#: several models is the best.
VALIDATION: Final = 0.15
_SMALL_EVENTS: Final = 20_000
_WHOLE: Final = ("trees", "depth", "patience")


def parse_parameters(kind: str, texts: tuple[str, ...]) -> dict[str, float]:
    """Return the parameters of a kind, changed by ``NAME=VALUE`` texts. Raises UsageError (2)."""
    parameters = dict(PARAMETERS[kind])
    for text in texts:
        name, _, value = text.partition("=")
        try:
            if name not in parameters:
                raise ValueError("unknown")
            parameters[name] = int(value) if name in _WHOLE else float(value)
        except ValueError:
            raise UsageError(
                f"--set is NAME=VALUE, not {text!r}",
                found=f"{kind} has {', '.join(parameters)}",
                next_step="--set depth=6",
            ) from None
        if not parameters[name] > 0:
            raise UsageError(f"{name} is above 0", found=text)
    return parameters


def fit_xgboost(
    events: Events,
    scalers: Scalers,
    parameters: Mapping[str, float],
    seed: int,
    threads: int,
    kind: str = "xgboost",
) -> tuple[XgboostModel, list[dict[str, float]]]:
    """Fit trees to events in memory; return the model, and the loss by round.

    Boosting stops when the loss of the validation part, the last events, no longer
    falls. A forest is one round of many trees. ``threads``: 0 for all cores, or one
    where events are few.
    """
    require_xgboost()
    import xgboost

    labels, weights = events.labels, scalers.weights(events.labels, events.weights)
    if not threads and len(labels) < _SMALL_EVENTS:
        # Threads that wait for each other cost more than they save.
        threads = 1
    count, classes = validation_start(len(labels)), len(events.layout.classes)
    is_signed = bool((weights < 0).any())
    # XGBoost refuses negative weights; our own objective applies them.
    options: list[dict[str, Any]] = [
        {} if is_signed else {"weight": weights[part]}
        for part in (slice(count), slice(count, None))
    ]
    train = xgboost.DMatrix(events.hlf[:count], labels[:count], **options[0])
    validation = xgboost.DMatrix(events.hlf[count:], labels[count:], **options[1])
    losses: dict[str, dict[str, list[float]]] = {}
    rounds, patience, special = int(parameters["trees"]), parameters.get("patience"), {}
    if kind == "forest":
        # Each split chooses among as many features as random forests do.
        share = float(np.sqrt(events.hlf.shape[1]) / events.hlf.shape[1])
        special = {"num_parallel_tree": rounds, "colsample_bynode": share}
        rounds = 1
    signed: dict[str, Any] = {}
    if is_signed:
        signed = {
            "obj": lambda margins, data: _signed_gradients(
                margins, labels[:count], weights[:count]
            ),
            "custom_metric": lambda margins, data: (
                "mlogloss",
                _signed_loss(
                    margins,
                    data.get_label(),
                    weights[:count] if data is train else weights[count:],
                ),
            ),
        }
    booster = xgboost.train(
        {
            **({"disable_default_eval_metric": True, "base_score": 0.0} if is_signed else {}),
            "objective": "multi:softprob",
            "num_class": classes,
            "max_depth": int(parameters["depth"]),
            "eta": parameters.get("rate", 1.0),
            **special,
            "min_child_weight": parameters["min_child_weight"],
            "subsample": parameters["subsample"],
            "tree_method": "hist",
            "seed": seed,
            "nthread": threads,
            "verbosity": 0,
        },
        train,
        rounds,
        evals=[(train, "train"), (validation, "validation")],
        evals_result=losses,
        early_stopping_rounds=None if patience is None else int(patience),
        verbose_eval=False,
        **signed,
    )
    history = [
        {"train_loss": float(of_train), "validation_loss": float(of_validation)}
        for of_train, of_validation in zip(
            losses["train"]["mlogloss"], losses["validation"]["mlogloss"], strict=True
        )
    ]
    if patience is not None:
        rounds = int(booster.best_iteration) + 1
    return XgboostModel(booster, rounds, events.layout, kind), history


def _probabilities(margins: Array, classes: int) -> Array:
    powers = margins.reshape(-1, classes)
    powers = np.exp(powers - powers.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _signed_gradients(margins: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Return gradients with the sign of the weights, and second derivatives without: a
    step needs them above 0.
    """
    probabilities = _probabilities(margins, margins.shape[-1])
    gradients = probabilities - np.eye(probabilities.shape[1])[labels]
    return gradients * weights[:, None], 2 * probabilities * (1 - probabilities) * np.abs(weights)[
        :, None
    ]


def _signed_loss(margins: Array, labels: Array, weights: Array) -> float:
    """Return the mean loss with signed weights, whose mean is 1; ``margins`` are those
    before the transformation.
    """
    probabilities = _probabilities(margins, margins.shape[-1])[
        np.arange(len(labels)), labels.astype(np.int64)
    ]
    return float(-(np.log(np.clip(probabilities, 1e-15, 1)) * weights).mean())


def validation_start(count: int) -> int:
    """Return the number of the first event of the validation part, which is the end of
    the events to learn from.
    """
    return max(1, min(count - 1, round(count * (1 - VALIDATION))))


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
            train_model(spark, store, sample, kind, folder, options)
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
    sample: StoredSample,
    kind: str,
    folder: Path,
    options: TrainOptions,
) -> None:
    """Train one model and write it into ``folder``. Raises UsageError (2) for
    parameters that it does not have.
    """
    if kind in NETWORKS:
        _train_network(spark, store, sample, kind, folder, options)
        return
    parameters = parse_parameters(kind, options.parameters)
    with on_this_host(store, sample.folder, (TRAIN,)) as local:
        events, scalers = read_events(local / TRAIN), Scalers.load(local)
        model, history = fit_xgboost(events, scalers, parameters, options.seed, 0, kind)
        model.save(folder, scalers, parameters, options.seed)
    if kind == "xgboost":
        write_history(folder, history)


def _train_network(
    spark: SparkSession,
    store: Files,
    sample: StoredSample,
    kind: str,
    folder: Path,
    options: TrainOptions,
) -> None:
    """Train a network, and write it into ``folder``. Raises UsageError (2) for a sample
    that workers on other hosts cannot open.
    """
    if options.networks is None:
        raise UsageError(
            f"a {kind} network is trained by workers",
            next_step=f"run_spark events_train --model {kind}",
        )
    if not is_local(sample.folder) and not spark.sparkContext.master.startswith("local"):
        raise UsageError(
            "networks learn from a sample on a file system that all hosts mount",
            where=sample.folder,
            next_step="train on this host (--master local[*]), or copy the sample there and use cmsspark lab train run",
        )
    if kind != "hlf" and not sample.low_level:
        raise DataError(
            f"a {kind} network reads the matrix of particles",
            where=sample.folder,
            found="a sample without it",
            next_step="run_spark events_prepare --low-level, then events_sample",
        )
    with on_this_host(store, sample.folder, (TRAIN,)) as local:
        options.networks(spark, local, kind, options.seed, folder)


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
