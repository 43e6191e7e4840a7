"""Models in folders: what kinds there are, and how each is loaded to score events."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import numpy as np

from cmsspark.apps.events.layout import SCHEMA_FILE, EventLayout, layout_in
from cmsspark.apps.events.networks import WEIGHTS_FILE
from cmsspark.apps.events.scalers import SCALERS_FILE
from cmsspark.base import extras
from cmsspark.base.arrays import Array, jit
from cmsspark.base.errors import DataError, InputMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Forests and boosted trees of pyspark.ml as arrays: they score events without a JVM, in
# any task.

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


MODEL_FILE: Final = "model.json"
BOOSTER_FILE: Final = "xgboost.ubj"
#: What a folder has of a model, without what judges it.
_FILES: Final = (MODEL_FILE, BOOSTER_FILE, TREES_FILE, WEIGHTS_FILE, SCALERS_FILE, SCHEMA_FILE)
FORMAT_VERSION: Final = 1
#: Each kind with what it is.
TREE_KINDS: Final[Mapping[str, str]] = {
    "forest": "random forest on the high-level features (pyspark.ml)",
    "boosting": "gradient boosted trees on the high-level features, one class against the others (pyspark.ml)",
    "xgboost": "gradient boosted trees on the high-level features (XGBoost)",
}
#: The networks, and what each reads.
NETWORKS: Final[Mapping[str, str]] = {
    "hlf": "network on the high-level features: 50, 20, 10 units",
    "sequence": "recurrent network on the sequence of particles: a GRU of width 50",
    "inclusive": "recurrent network on particles together with the high-level features",
}
ABOUT: Final[Mapping[str, str]] = {**TREE_KINDS, **NETWORKS}


class Model(Protocol):
    """A classifier of events. ``predict`` takes unscaled features and returns
    probabilities ``(n, classes)``.
    """

    @property
    def kind(self) -> str: ...
    @property
    def layout(self) -> EventLayout: ...
    @property
    def needs_low_level(self) -> bool: ...
    def predict(self, hlf: Array, low_level: Array | None) -> Array: ...


@dataclass(frozen=True)
class ForestModel:
    """A forest or boosted trees of pyspark.ml."""

    kind: str
    trees: Trees
    layout: EventLayout
    needs_low_level: bool = False

    def predict(self, hlf: Array, low_level: Array | None = None) -> Array:
        """Return the probabilities of events."""
        return self.trees.predict(hlf)


@dataclass(frozen=True)
class XgboostModel:
    """Boosted trees of XGBoost; ``rounds``: the trees up to the best round."""

    booster: Any
    rounds: int
    layout: EventLayout
    kind: str = "xgboost"
    needs_low_level: bool = False

    def predict(self, hlf: Array, low_level: Array | None = None) -> Array:
        """Return the probabilities of events."""
        if not len(hlf):
            return np.zeros((0, len(self.layout.classes)), np.float32)
        rows = np.ascontiguousarray(hlf, np.float32)
        return np.asarray(
            self.booster.inplace_predict(rows, iteration_range=(0, self.rounds)), np.float32
        )


def read_description(folder: str | Path) -> dict[str, Any]:
    """Return the content of ``model.json``. Raises InputMissing (66) without one,
    DataError (65) for another format.
    """
    path = Path(folder, MODEL_FILE)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputMissing(
            "the model has no folder here",
            where=path,
            found="no such file",
            next_step="run_spark events_train",
        ) from None
    except ValueError as error:
        raise DataError(
            "the description of a model is damaged", where=path, found=str(error)
        ) from None
    version = document.get("format_version") if isinstance(document, dict) else None
    if version != FORMAT_VERSION or document.get("kind") not in ABOUT:
        raise DataError(
            f"no model of format {FORMAT_VERSION} of one of the kinds {', '.join(ABOUT)}",
            where=path,
            found=f"format {version}",
            next_step="use the version of cmsspark that wrote it, or train it again",
        )
    described: dict[str, Any] = document
    return described


def load(folder: str | Path) -> Model:
    """Return the model of a folder.

    Raises InputMissing (66), DataError (65) where it is damaged, UsageError (2) for an
    extra that is not installed.
    """
    document = read_description(folder)
    kind = str(document["kind"])
    if kind in NETWORKS:
        from cmsspark.apps.events import networks

        return networks.load(folder)
    if kind != "xgboost":
        return ForestModel(kind, Trees.load(Path(folder, TREES_FILE)), layout_in(Path(folder)))
    require_xgboost()
    import xgboost

    path = Path(folder, BOOSTER_FILE)
    booster = xgboost.Booster()
    try:
        booster.load_model(path)
    except xgboost.core.XGBoostError as error:
        raise DataError(
            "the trees of a model cannot be read", where=path, found=str(error).splitlines()[0]
        ) from None
    return XgboostModel(
        booster, int(document["parameters"]["rounds_used"]), layout_in(Path(folder))
    )


def require_xgboost() -> None:
    """Raise UsageError (2) that names the extra where XGBoost is not installed."""
    extras.require("boosted trees of XGBoost need", "xgboost", extra="events")


def model_digest(folder: Path) -> str:
    """Return a digest of the files of a model that its scores come from."""
    digest = hashlib.sha256()
    for name in _FILES:
        path = folder / name
        digest.update(
            f"{name} ".encode()
            + hashlib.sha256(path.read_bytes() if path.exists() else b"").digest()
        )
    return digest.hexdigest()


def write_model(
    folder: Path,
    model: ForestModel | XgboostModel,
    parameters: Mapping[str, Any],
    seed: int,
    sample: Path,
) -> None:
    """Write a model into a folder: ``model.json``, its trees, and copies of the
    sample's scalers and schema.
    """
    more = {"rounds_used": model.rounds} if isinstance(model, XgboostModel) else {}
    document = {
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "inputs": ["hlf"],
        "features": list(model.layout.feature_names),
        "classes": list(model.layout.class_names),
        "parameters": {**parameters, **more},
        "seed": seed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if isinstance(model, XgboostModel):
        model.booster.save_model(folder / BOOSTER_FILE)
    else:
        model.trees.save(folder / TREES_FILE)
    for name in (SCHEMA_FILE, SCALERS_FILE):
        shutil.copyfile(sample / name, folder / name)
