"""Training of trees on high-level features: random forest and boosting of pyspark.ml, and XGBoost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.models import XgboostModel, require_xgboost
from cmsspark.apps.events.root_files import Events
from cmsspark.apps.events.scalers import Scalers
from cmsspark.apps.events.trees import Trees, from_spark, read_nodes
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The parameters of each kind, with their defaults.
PARAMETERS: Final[Mapping[str, Mapping[str, float]]] = {
    "forest": {"trees": 60, "depth": 8},
    "boosting": {"trees": 20, "depth": 4, "rate": 0.2},
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


def train_with_spark(
    spark: SparkSession,
    kind: str,
    rows: DataFrame,
    scratch: str,
    parameters: Mapping[str, float],
    seed: int,
    classes: int,
) -> Trees:
    """Train a forest, or boosted trees of each class against the others, on the
    ``rows`` of :func:`vectors`.

    ``scratch``: a location that Spark can write, for its own form of the models.
    """
    from pyspark.ml.classification import GBTClassifier, RandomForestClassifier

    trees, depth = int(parameters["trees"]), int(parameters["depth"])
    if kind == "forest":
        models = [
            RandomForestClassifier(
                weightCol="weight", numTrees=trees, maxDepth=depth, seed=seed
            ).fit(rows)
        ]
    else:
        boosting = GBTClassifier(
            weightCol="weight",
            maxIter=trees,
            maxDepth=depth,
            stepSize=parameters["rate"],
            seed=seed,
        )
        models = [boosting.fit(_against_others(rows, label)) for label in range(classes)]
    nodes = [
        read_nodes(spark, model, f"{scratch}/{number}") for number, model in enumerate(models)
    ]
    return from_spark(kind, nodes, classes)


def vectors(spark: SparkSession, folder: str, scalers: Scalers) -> DataFrame:
    """Return the events of a folder of parts as pyspark.ml takes them: ``features``,
    ``label`` and ``weight``.

    Raises DataError (65) for negative weights, which these trees cannot learn from.
    """
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    from cmsspark.store.results import spark_location

    rows = spark.read.parquet(spark_location(folder))
    features = array_to_vector(F.col("hlf").cast("array<double>"))
    label, weight = F.col("label").cast("double"), F.lit(1.0)
    if scalers.mean_weights is not None:
        if rows.filter("weight < 0").limit(1).count():
            raise DataError(
                "trees of pyspark.ml learn from weights of 0 and more",
                where=folder,
                found="negative weights",
                next_step="--model xgboost, or a network",
            )
        means = F.array(*map(F.lit, scalers.mean_weights.tolist()))
        weight = F.col("weight") / means[F.col("label").cast("int")]
    return rows.select(features.alias("features"), label.alias("label"), weight.alias("weight"))


def _against_others(rows: DataFrame, label: int) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("label", (F.col("label") == float(label)).cast("double"))


def fit_xgboost(
    events: Events, scalers: Scalers, parameters: Mapping[str, float], seed: int, threads: int
) -> tuple[XgboostModel, list[dict[str, float]]]:
    """Fit XGBoost to events in memory; return the model, and the loss by round.

    Boosting stops when the loss of the validation part, the last events, no longer
    falls. ``threads``: 0 for all cores, or one where events are few.
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
        evals=[(train, "train"), (validation, "validation")],
        evals_result=losses,
        early_stopping_rounds=int(parameters["patience"]),
        verbose_eval=False,
        **signed,
    )
    history = [
        {"train_loss": float(of_train), "validation_loss": float(of_validation)}
        for of_train, of_validation in zip(
            losses["train"]["mlogloss"], losses["validation"]["mlogloss"], strict=True
        )
    ]
    return XgboostModel(booster, int(booster.best_iteration) + 1, events.layout), history


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
