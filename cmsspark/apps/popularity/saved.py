"""Saved models: a folder of versions, each with the model, its model card, and the
digest of its features.

``FOLDER/<version>/model.json`` holds the numbers and trees, ``card.json`` what the
model is: label, what it learned from (the run of each stored day and table) and until
when, its columns with their digest, how good it was on the last weeks.
``FOLDER/LATEST`` names the newest version. A version is the day that it learned up to,
and the first digits of the digest of model and card.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS
from cmsspark.apps.popularity.fitting import calibrated, fit, of_population
from cmsspark.apps.popularity.models import ABOUT, Model, make_model
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing, OutputError, UsageError
from cmsspark.filesystems.storage import is_local, join
from cmsspark.store import stored_columns

_VERSION: Final = 1
#: Columns of common tiers and campaigns begin so.
_FLAGS: Final = ("is_tier_", "is_campaign_")


@dataclass(frozen=True)
class Saved:
    """A saved model: its card, and the model with its calibration. ``folder``: of its
    version, a path or URI.
    """

    folder: str
    card: dict[str, Any]
    model: Model
    calibration: Array | None

    @property
    def version(self) -> str:
        """The name of its version."""
        return self.folder.rpartition("/")[2]

    @property
    def label(self) -> Label:
        """What it predicts."""
        return Label(**self.card["label"])

    def predict(self, weeks: Weeks, day: int) -> tuple[Array, Array]:
        """Return (calibrated, raw) probabilities of the datasets of ``weeks`` on that
        day, float64 [datasets]; NaN for datasets that have not entered.

        Raises DataError (65) where the model has learned from that day or a later one,
        or from other features.
        """
        learned = date.fromisoformat(self.card["learned_until"])
        first = weeks.series.days[0]
        if (learned - first).days >= day:
            raise DataError(
                f"the model knows days of the week that it is to predict: it learned up to {learned}",
                where=self.folder,
                next_step="choose a later --date, or an older version of the model",
            )
        columns = self.card["columns"]
        raw = of_population(
            weeks, day, lambda rows: self.model.predict(aligned(rows, weeks.columns, columns))
        )
        return calibrated(raw, self.calibration), raw

    def contributions(self, weeks: Weeks, day: int) -> Array | None:
        """Return by how much the columns of ``weeks`` moved the forecasts of the
        population on that day; None where the model cannot say.
        """
        entered, columns = weeks.population(day), self.card["columns"]
        moved = self.model.contributions(aligned(weeks.rows(day)[entered], weeks.columns, columns))
        if moved is None:
            return None
        contributions = np.zeros((len(moved), len(weeks.columns)))
        for number, name in enumerate(columns):
            if name in weeks.columns:
                contributions[:, weeks.columns.index(name)] = moved[:, number]
        return contributions


def columns_digest(columns: Sequence[str]) -> str:
    """Return the sha256 of the names of columns, in order."""
    return hashlib.sha256("\n".join(columns).encode()).hexdigest()


def aligned(rows: Array, columns: Sequence[str], model_columns: Sequence[str]) -> Array:
    """Return the rows with the columns of a model: flags of tiers and campaigns that
    the series has not are 0, its own others are left out. Raises DataError (65) where
    another column is missing: features have changed, or the model learned from tables
    of a store that the series has not.
    """
    numbers = {name: number for number, name in enumerate(columns)}
    lacking = [
        name for name in model_columns if name not in numbers and not name.startswith(_FLAGS)
    ]
    if lacking and set(lacking) <= set(STORE_COLUMNS):
        raise DataError(
            "the model learned from columns of a store that this series has not",
            found=f"no {', '.join(lacking)}",
            next_step="predict from a store with the tables that it had, or train a model again",
        )
    if lacking or list(model_columns[: len(BASE_COLUMNS)]) != list(BASE_COLUMNS):
        raise DataError(
            "the model was made with other features than this version of cmsspark has",
            found=f"no {', '.join(lacking)}" if lacking else "another order of columns",
            next_step="train it again: cmsspark popularity train",
        )
    result = np.zeros((len(rows), len(model_columns)))
    for number, name in enumerate(model_columns):
        if name in numbers:
            result[:, number] = rows[:, numbers[name]]
    return result


def train(
    folder: Path, weeks: Weeks, model_name: str, metrics: Sequence[Mapping[str, Any]], seed: int
) -> Path:
    """Train the model on all days of the series, write it as a new version, and return
    its folder. ``metrics``: of past weeks, as ``evaluate.judge`` returns them.

    Raises OutputError (73) where it cannot be written. The same series, seed and
    version of cmsspark give the same version.
    """
    series, label = weeks.series, weeks.label
    if label.model_on(series, len(series.days), model_name) != model_name:
        raise InputMissing(
            f"there are too few days to train {model_name}",
            found=f"{len(series.days)} days, {series.days[0]} to {series.days[-1]}",
            next_step=f"give more days: {label.rule(series, model_name)}",
        )
    fitted = fit(weeks, len(series.days), model_name, seed=seed)
    training = fitted.training
    model = json.dumps(
        {
            "version": _VERSION,
            "name": fitted.name,
            "calibration": None if fitted.calibration is None else fitted.calibration.tolist(),
            "model": fitted.model.save(),
        }
    )
    card = {
        "model": fitted.name,
        "about": ABOUT[fitted.name],
        "label": asdict(label),
        "learned_from": series.days[0].isoformat(),
        "learned_until": series.days[-1].isoformat(),
        "datasets": len(series.datasets),
        "rows": len(training.rows),
        "rows_before_sampling": training.total,
        "rows_sha256": hashlib.sha256(np.ascontiguousarray(training.rows).tobytes()).hexdigest(),
        "columns": list(weeks.columns),
        "columns_sha256": columns_digest(weeks.columns),
        "model_sha256": hashlib.sha256(model.encode()).hexdigest(),
        "seed": seed,
        "weeks": [{**row, "week": str(row["week"])} for row in metrics],
    }
    # Inputs are not part of the version: a day that is counted again has another run
    # and the same rows.
    digest = hashlib.sha256((model + json.dumps(card, indent=1)).encode()).hexdigest()
    version = f"{series.days[-1]}-{digest[:8]}"
    text = json.dumps({**card, "inputs": series.inputs}, indent=1)
    try:
        version_folder = folder / version
        version_folder.mkdir(parents=True, exist_ok=True)
        (version_folder / "model.json").write_text(model, encoding="utf-8")
        (version_folder / "card.json").write_text(text + "\n", encoding="utf-8")
        aside = folder / f".LATEST-{os.getpid()}"
        aside.write_text(version + "\n", encoding="utf-8")
        aside.replace(folder / "LATEST")
    except OSError as error:
        raise OutputError(
            "the model cannot be written", where=folder, found=error.strerror
        ) from None
    return version_folder


def load(location: str) -> Saved:
    """Return the model of a version's folder, or the newest of a folder of versions, on
    any file system.

    Raises InputMissing (66) where there is none, DataError (65) where it is damaged or
    of another version of cmsspark.
    """
    files, folder = (
        stored_columns.open_store(location, "cmsspark popularity"),
        location.rstrip("/"),
    )
    if files.stat(join(folder, "card.json")) is None:
        newest = join(folder, "LATEST")
        if files.stat(newest) is None:
            raise InputMissing(
                "there is no saved model",
                where=folder,
                next_step="cmsspark popularity train -o FOLDER makes one",
            )
        folder = join(folder, files.read_bytes(newest).decode().strip())
    try:
        text = files.read_bytes(join(folder, "model.json"))
        card = json.loads(files.read_bytes(join(folder, "card.json")))
        if hashlib.sha256(text).hexdigest() != card["model_sha256"]:
            raise ValueError("model.json is not the one of card.json")
        if columns_digest(card["columns"]) != card["columns_sha256"]:
            raise ValueError("the columns are not those of their digest")
        return Saved(folder, card, *_load_model(json.loads(text), card))
    except (InputMissing, OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "the saved model cannot be read",
            where=folder,
            found=str(error),
            next_step="train it again",
        ) from None


def find(location: str) -> Saved | None:
    """Return the saved model in a path or URI; None where a path is no folder. Raises
    as :func:`load`.
    """
    if is_local(location) and not location.startswith("file:") and not Path(location).is_dir():
        return None
    return load(location)


def _load_model(saved: Mapping[str, Any], card: Mapping[str, Any]) -> tuple[Model, Array | None]:
    if saved["version"] != _VERSION:
        raise ValueError(f"format {saved['version']}, this version of cmsspark reads {_VERSION}")
    try:
        model = make_model(saved["name"], Label(**card["label"]))
    except UsageError as error:
        raise ValueError(error.problem) from None
    model.load(saved["model"])
    return model, None if saved["calibration"] is None else np.array(saved["calibration"])
