"""Models in folders: what kinds there are, and how each is loaded to score events."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cmsspark.apps.events.layout import (
    BOOSTER_FILE,
    MODEL_FILES,
    NETWORKS,
    EventLayout,
    layout_in,
    read_description,
    write_model,
)
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base import extras
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError


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
        write_model(folder, self.kind, self.layout, scalers.as_dict(), used, seed, write)


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
    for name in MODEL_FILES:
        path = folder / name
        digest.update(
            f"{name} ".encode()
            + hashlib.sha256(path.read_bytes() if path.exists() else b"").digest()
        )
    return digest.hexdigest()
