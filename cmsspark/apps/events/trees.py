"""Forests and boosted trees of pyspark.ml as arrays: they score events without a JVM, in any task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError
from cmsspark.base.jit import jit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TREES_FILE: Final = "trees.npz"
_LEAF: Final = -1


@dataclass(frozen=True)
class Trees:
    """Trees as arrays over their nodes. ``roots``: the first node of each tree;
    ``weights``: of each tree, by class.

    A node has a feature, or -1 for a leaf; events with a value up to the threshold go
    left. ``values``: what a leaf gives, by class. ``kind``: ``forest`` for a mean of
    probabilities, ``boosting`` for margins of each class against the others.
    """

    kind: str
    roots: Array
    weights: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    values: Array

    def predict(self, hlf: Array) -> Array:
        """Return probabilities ``(n, classes)`` of events, from unscaled features ``(n,
        features)``.
        """
        sums = np.zeros((len(hlf), self.values.shape[1]))
        rows = np.ascontiguousarray(hlf, np.float64)
        _add_trees(
            rows,
            self.roots,
            self.weights,
            self.feature,
            self.threshold,
            self.left,
            self.right,
            self.values,
            sums,
        )
        if self.kind == "boosting":
            # The loss of Spark's boosted trees is that of twice the margin.
            sums = 1.0 / (1.0 + np.exp(np.clip(-2.0 * sums, -500, 500)))
        total = sums.sum(axis=1, keepdims=True)
        return (sums / np.where(total > 0, total, 1.0)).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the arrays."""
        names = ("roots", "weights", "feature", "threshold", "left", "right", "values")
        np.savez_compressed(
            path, kind=np.array(self.kind), **{name: getattr(self, name) for name in names}
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote. Raises DataError (65) where the file is damaged."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                return cls(
                    str(stored["kind"]),
                    **{name: stored[name] for name in stored.files if name != "kind"},
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                "the trees of a model cannot be read", where=path, found=str(error)
            ) from None


@jit
def _add_trees(
    rows: Array,
    roots: Array,
    weights: Array,
    feature: Array,
    threshold: Array,
    left: Array,
    right: Array,
    values: Array,
    sums: Array,
) -> None:
    """Add what the leaf of each tree gives to the sums of each event."""
    for event in range(len(rows)):
        for tree in range(len(roots)):
            node = roots[tree]
            while feature[node] >= 0:
                node = left[node] if rows[event, feature[node]] <= threshold[node] else right[node]
            for label in range(sums.shape[1]):
                sums[event, label] += weights[tree, label] * values[node, label]


def from_spark(
    kind: str, ensembles: Iterable[tuple[list[Node], list[float]]], classes: int
) -> Trees:
    """Return the trees of fitted models of pyspark.ml: one forest, or for each class
    one model of boosted trees.

    ``ensembles``: of each model the nodes (:func:`read_nodes`) and the weights of its trees.
    """
    is_forest = kind == "forest"
    roots: list[int] = []
    weights: list[list[float]] = []
    nodes: list[tuple[int, float, int, int]] = []
    values: list[list[float]] = []
    for label, (all_nodes, tree_weights) in enumerate(ensembles):
        for number, weight in enumerate(tree_weights):
            first = len(nodes)
            roots.append(first)
            # A tree of a forest votes for all classes, one of boosted trees for its own.
            weights.append([1.0 if is_forest else weight * (of == label) for of in range(classes)])
            for node in sorted(
                (node for node in all_nodes if node.tree == number), key=lambda node: node.number
            ):
                feature = node.feature if node.left >= 0 else _LEAF
                nodes.append((feature, node.threshold, first + node.left, first + node.right))
                total = sum(node.stats) or 1.0
                values.append(
                    [count / total for count in node.stats]
                    if is_forest
                    else [node.prediction] * classes
                )
    return Trees(kind, *map(np.array, (roots, weights, *zip(*nodes, strict=True), values)))


def read_nodes(spark: SparkSession, model: Any, location: str) -> tuple[list[Node], list[float]]:
    """Return the nodes of a fitted model, which is written to ``location`` for that,
    and the weights of its trees.
    """
    from pyspark.sql import functions as F

    model.write().overwrite().save(location)
    names = ("id", "prediction", "impurityStats", "leftChild", "rightChild")
    columns = [F.col(f"nodeData.{name}").alias(name) for name in names]
    split = F.col("nodeData.split")
    columns += [
        split["featureIndex"].alias("feature"),
        split["leftCategoriesOrThreshold"].alias("at"),
    ]
    rows = spark.read.parquet(f"{location}/data").select("treeID", *columns).collect()
    nodes = [
        Node(
            row["treeID"],
            row["id"],
            row["prediction"],
            tuple(row["impurityStats"]),
            row["leftChild"],
            row["rightChild"],
            row["feature"],
            row["at"][0] if row["at"] else 0.0,
        )
        for row in rows
    ]
    return nodes, [float(weight) for weight in model.treeWeights]


class Node(NamedTuple):
    """A node as Spark stores it; leaves have the children -1. ``stats``: events by
    class, in forests.
    """

    tree: int
    number: int
    prediction: float
    stats: tuple[float, ...]
    left: int
    right: int
    feature: int
    threshold: float
