"""Models in folders: what kinds there are, and how each is loaded to score events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from cmsspark.apps.events.layout import (
    SCHEMA_FILE,
    EventLayout,
    layout_in,
    read_file,
    write_json,
)
from cmsspark.apps.events.scalers import SCALERS_FILE, Scalers
from cmsspark.base import extras
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

MODEL_FILE: Final = "model.json"
BOOSTER_FILE: Final = "xgboost.ubj"
WEIGHTS_FILE: Final = "weights.npz"
#: What a folder has of a model, without what judges it.
_FILES: Final = (MODEL_FILE, BOOSTER_FILE, WEIGHTS_FILE, SCALERS_FILE, SCHEMA_FILE)
FORMAT_VERSION: Final = 1
#: Each kind with what it is.
TREE_KINDS: Final[Mapping[str, str]] = {
    "forest": "random forest on the high-level features (XGBoost)",
    "xgboost": "gradient boosted trees on the high-level features (XGBoost)",
}
NETWORKS: Final[Mapping[str, str]] = {
    "hlf": "network on the high-level features: 50, 20, 10 units",
    "sequence": "recurrent network on the sequence of particles: a GRU of width 50",
    "inclusive": "recurrent network on particles together with the high-level features",
}
ABOUT: Final[Mapping[str, str]] = {**TREE_KINDS, **NETWORKS}
#: What a kind reads, if not the features alone.
_INPUTS: Final = {"sequence": ["low_level"], "inclusive": ["hlf", "low_level"]}


def read_columns(kind: str) -> list[str]:
    """Return the columns of events that a kind of model reads."""
    return _INPUTS.get(kind, ["hlf"])


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
class XgboostModel:
    """Trees of XGBoost, a forest or boosted; ``rounds``: those up to the best one."""

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

    def save(
        self, folder: Path, scalers: Scalers, parameters: Mapping[str, Any], seed: int
    ) -> None:
        """Write the model into a folder, which is made."""

        def write(target: Path) -> None:
            self.booster.save_model(target / BOOSTER_FILE)

        used = {**parameters, "rounds_used": self.rounds}
        write_model(folder, self, scalers, used, seed, write)


def read_description(folder: str | Path) -> dict[str, Any]:
    """Return the content of ``model.json``. Raises InputMissing (66) without one,
    DataError (65) for another format.
    """
    path = Path(folder, MODEL_FILE)
    text = read_file(path, "the model has no folder here", "run_spark events_train")
    try:
        document = json.loads(text)
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
    require_xgboost()
    import xgboost

    path = Path(folder, BOOSTER_FILE)
    booster = xgboost.Booster()
    try:
        booster.load_model(path)
    except xgboost.core.XGBoostError as error:
        raise DataError(
            "the trees of a model cannot be read",
            where=path,
            found=str(error).splitlines()[0],
            next_step="train it again: run_spark events_train",
        ) from None
    rounds = int(document["parameters"]["rounds_used"])
    return XgboostModel(booster, rounds, layout_in(Path(folder)), kind)


def require_xgboost() -> None:
    """Raise UsageError (2) that names the extra where XGBoost is not installed."""
    extras.require("trees of XGBoost need", "xgboost", extra="events")


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
    model: Model,
    scalers: Scalers,
    parameters: Mapping[str, Any],
    seed: int,
    write_weights: Callable[[Path], object],
) -> None:
    """Write a model into a folder, which is made: ``model.json`` at last, the scalers and
    the schema of what it learned from, and what ``write_weights`` writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder)
    write_json(folder / SCHEMA_FILE, model.layout.document(origin=False))
    write_json(folder / SCALERS_FILE, scalers.as_dict())
    # Last: a folder with this file is whole.
    described = {
        "format_version": FORMAT_VERSION,
        "kind": model.kind,
        "inputs": read_columns(model.kind),
        "features": list(model.layout.feature_names),
        "classes": list(model.layout.class_names),
        "parameters": dict(parameters),
        "seed": seed,
    }
    write_json(folder / MODEL_FILE, described)
