"""Models of pyspark.ml behind the same interface: logistic regression, random forest,
gradient boosting.
"""

from __future__ import annotations

import base64
import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.popularity.training import Training
from cmsspark.base.arrays import Array

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Kind → options of pyspark.ml's class.
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "logistic": {"regParam": 0.01, "standardization": True, "maxIter": 50},
    "forest": {"numTrees": 100, "maxDepth": 5, "minInstancesPerNode": 10, "subsamplingRate": 0.6},
    "boosting": {
        "maxIter": 60,
        "maxDepth": 2,
        "stepSize": 0.1,
        "minInstancesPerNode": 8,
        "subsamplingRate": 0.7,
    },
}


class SparkModel:
    """A model of pyspark.ml. Rows go to Spark as Arrow, and probabilities come back in
    their order.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def fit(self, training: Training, seed: int) -> None:
        frame = _frame(training.rows, training.labels, training.weights)
        self._model = _estimator(self._kind, OPTIONS[self._kind], seed).fit(frame)

    def predict(self, rows: Array) -> Array:
        from pyspark.ml.functions import vector_to_array
        from pyspark.sql import functions as F

        scored = self._model.transform(_frame(rows))
        table = scored.select(
            "number", vector_to_array(F.col("probability"))[1].alias("p")
        ).toPandas()
        result = np.empty(len(rows))
        result[table["number"].to_numpy()] = table["p"].to_numpy()
        return result

    def contributions(self, rows: Array) -> None:
        return None

    def save(self) -> dict[str, Any]:
        packed = io.BytesIO()
        with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
            self._model.write().overwrite().save(Path(folder, "model").as_uri())
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                archive.add(Path(folder, "model"), "model")
        return {"kind": self._kind, "pyspark_ml": base64.b64encode(packed.getvalue()).decode()}

    def load(self, saved: Mapping[str, Any]) -> None:
        from pyspark.ml import classification

        kinds = {
            "logistic": "LogisticRegressionModel",
            "forest": "RandomForestClassificationModel",
            "boosting": "GBTClassificationModel",
        }
        _session()
        packed = io.BytesIO(base64.b64decode(saved["pyspark_ml"]))
        with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
            with tarfile.open(fileobj=packed) as archive:
                archive.extractall(folder, filter="data")
            path = Path(folder, "model").as_uri()
            self._model = getattr(classification, kinds[saved["kind"]]).load(path)


def _session() -> SparkSession:
    from cmsspark.engines.session import session

    return session("cmsspark popularity")


def _estimator(kind: str, options: Mapping[str, Any], seed: int) -> Any:
    from pyspark.ml import classification

    columns = {"featuresCol": "features", "labelCol": "label", "weightCol": "weight"}
    if kind == "logistic":
        return classification.LogisticRegression(**columns, **options)
    if kind == "forest":
        return classification.RandomForestClassifier(**columns, **options, seed=seed)
    return classification.GBTClassifier(**columns, **options, seed=seed)


def _frame(rows: Array, labels: Array | None = None, weights: Array | None = None) -> DataFrame:
    """number, features, label and weight of each row; the number is its place."""
    import pandas as pd
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    zero = np.zeros(len(rows))
    table = pd.DataFrame(
        {
            "number": np.arange(len(rows)),
            "values": list(np.ascontiguousarray(rows, float)),
            "label": zero if labels is None else labels,
            "weight": zero + 1 if weights is None else weights,
        }
    )
    spark = _session()
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    frame = spark.createDataFrame(
        table, "number long, values array<double>, label double, weight double"
    )
    return frame.withColumn("features", array_to_vector(F.col("values"))).drop("values")
