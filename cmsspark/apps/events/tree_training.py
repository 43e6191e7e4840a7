"""Training of trees on high-level features: random forest and boosting of pyspark.ml, and XGBoost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.layout import CLASSES
from cmsspark.apps.events.models import XgboostModel, require_xgboost
from cmsspark.apps.events.trees import Trees, from_spark, read_nodes
from cmsspark.base.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Array = np.ndarray[Any, Any]

#: The parameters of each kind, with their defaults.
PARAMETERS: Final[Mapping[str, Mapping[str, float]]] = {
    "forest": {"trees": 60, "depth": 8},
    "boosting": {"trees": 20, "depth": 4, "rate": 0.2},
    "xgboost": {"trees": 300, "depth": 5, "rate": 0.1, "min_child_weight": 1.0, "subsample": 1.0, "patience": 20},
}
#: Share of the events to learn from that decides when boosting stops, and which of several models is the best.
VALIDATION: Final = 0.15
_SMALL_EVENTS: Final = 20_000
_WHOLE: Final = ("trees", "depth", "patience")


def parameters_of(kind: str, texts: tuple[str, ...]) -> dict[str, float]:
    """The parameters of a kind, with those of ``NAME=VALUE`` texts in place of defaults. Raises UsageError (2)."""
    known = dict(PARAMETERS[kind])
    for text in texts:
        name, _, value = text.partition("=")
        try:
            if name not in known:
                raise ValueError("unknown")
            known[name] = int(value) if name in _WHOLE else float(value)
        except ValueError:
            raise UsageError(
                f"--set is NAME=VALUE, not {text!r}", found=f"{kind} has {', '.join(known)}", next_step="--set depth=6"
            ) from None
        if not known[name] > 0:
            raise UsageError(f"{name} is above 0", found=text)
    return known


def train_with_spark(
    spark: SparkSession, kind: str, rows: DataFrame, scratch: str, parameters: Mapping[str, float], seed: int
) -> Trees:
    """Train a forest, or boosted trees of each class against the others, on ``rows`` with ``features`` and ``label``.

    ``scratch``: a location that Spark can write, for its own form of the models.
    """
    from pyspark.ml.classification import GBTClassifier, RandomForestClassifier

    trees, depth = int(parameters["trees"]), int(parameters["depth"])
    if kind == "forest":
        models = [RandomForestClassifier(numTrees=trees, maxDepth=depth, seed=seed).fit(rows)]
    else:
        boosting = GBTClassifier(maxIter=trees, maxDepth=depth, stepSize=parameters["rate"], seed=seed)
        models = [boosting.fit(_against_others(rows, label)) for label in range(len(CLASSES))]
    nodes = [read_nodes(spark, model, f"{scratch}/{number}") for number, model in enumerate(models)]
    return from_spark(kind, nodes, len(CLASSES))


def vectors(spark: SparkSession, folder: str) -> DataFrame:
    """The events of a folder of parts as pyspark.ml takes them: ``features`` and ``label``."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    from cmsspark.store.results import spark_location

    rows = spark.read.parquet(spark_location(folder))
    features = array_to_vector(F.col("hlf").cast("array<double>"))
    return rows.select(features.alias("features"), F.col("label").cast("double").alias("label"))


def _against_others(rows: DataFrame, label: int) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("label", (F.col("label") == float(label)).cast("double"))


def fit_xgboost(
    hlf: Array, labels: Array, parameters: Mapping[str, float], seed: int, threads: int
) -> tuple[XgboostModel, list[dict[str, float]]]:
    """Fit XGBoost to events in memory: the model, and the loss by round.

    Boosting stops when the loss of the validation part, the last events, no longer falls. ``threads``: 0 for
    all cores, or one where events are few.
    """
    xgboost = require_xgboost()
    if not threads and len(labels) < _SMALL_EVENTS:
        # Threads that wait for each other cost more than they save.
        threads = 1
    count = validation_start(len(labels))
    train = xgboost.DMatrix(hlf[:count], labels[:count])
    held_out = xgboost.DMatrix(hlf[count:], labels[count:])
    losses: dict[str, dict[str, list[float]]] = {}
    booster = xgboost.train(
        {
            "objective": "multi:softprob",
            "num_class": len(CLASSES),
            "max_depth": int(parameters["depth"]),
            "eta": parameters["rate"],
            "min_child_weight": parameters["min_child_weight"],
            "subsample": parameters["subsample"],
            "tree_method": "hist",
            "seed": seed,
            "nthread": threads,
            "verbosity": 0,
        },
        train,
        int(parameters["trees"]),
        evals=[(train, "train"), (held_out, "validation")],
        evals_result=losses,
        early_stopping_rounds=int(parameters["patience"]),
        verbose_eval=False,
    )
    history = [
        {"train_loss": float(one), "validation_loss": float(other)}
        for one, other in zip(losses["train"]["mlogloss"], losses["validation"]["mlogloss"], strict=True)
    ]
    return XgboostModel(booster, int(booster.best_iteration) + 1), history


def validation_start(count: int) -> int:
    """The number of the first event of the validation part, which is the end of the events to learn from."""
    return max(1, min(count - 1, round(count * (1 - VALIDATION))))
