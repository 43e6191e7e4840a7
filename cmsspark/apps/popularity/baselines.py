"""Rules that a model has to beat, and the warning where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.scores import mean
from cmsspark.apps.popularity.training import Label, Training, first_by_bytes
from cmsspark.base.arrays import Array
from cmsspark.base.text.terminal import pluralize

#: Their names, as models.
BASELINES: Final = ("persistence", "last-week", "decayed")


def select_measure(label: Label) -> str:
    """Return the measure that the baselines count: accesses, or bytes where the label is by bytes."""
    return "accesses" if label.top_bytes is None else "bytes"


def with_baselines(models: Sequence[str]) -> tuple[str, ...]:
    """Return the models, each once, after all baselines; without a model that is none,
    as they are.
    """
    if all(name in BASELINES for name in models):
        return tuple(dict.fromkeys(models))
    return tuple(dict.fromkeys((*BASELINES, *models)))


def warnings(rows: Sequence[Mapping[str, Any]], model: str) -> list[str]:
    """Return a warning where a baseline was better than the model in the judged weeks,
    in the mean, to three decimals.

    ``rows``: of :func:`cmsspark.apps.popularity.evaluate.judged`, or of the stored
    quality, all datasets together.
    """
    if model in BASELINES:
        return []
    means = {
        name: mean(row["average_precision"] for row in rows if row["model"] == name)
        for name in (model, *BASELINES)
    }
    precision = means.pop(model)
    scores = {name: value for name, value in means.items() if value is not None}
    name = max(scores, key=scores.__getitem__, default=model)
    if precision is None or round(scores.get(name, precision), 3) <= round(precision, 3):
        return []
    count = sum(row["model"] == model for row in rows)
    weeks = "week" if count == 1 else pluralize(count, "week")
    return [
        f"in the last {weeks} the baseline {name} was better than {model}: average precision {scores[name]:.3f} "
        f"against {precision:.3f}"
    ]


class Persistence:
    """What was popular in the last weeks will be, by the same rule; weeks: the longest
    window of the features that the horizon holds (1, 2, 4, 8 or 26 weeks; for bytes and
    users 1 or 4), the threshold in its share.
    """

    def __init__(self, label: Label) -> None:
        self._label = label

    def fit(self, training: Training, seed: int) -> None:
        label, columns = self._label, training.columns
        if label.top_bytes is not None:
            name, _ = _window("bytes", label, columns)
            self._saved: dict[str, Any] = {"column": columns.index(name), "top": label.top_bytes}
            return
        name, share = _window("accesses", label, columns)
        self._saved = {
            "column": columns.index(name),
            "least": float(np.log1p(label.threshold * share)),
        }
        if label.users is not None:
            users, share = _window("users", label, columns)
            self._saved |= {
                "users": columns.index(users),
                "least_users": float(np.log1p(label.users * share)),
            }

    def predict(self, rows: Array) -> Array:
        saved = self._saved
        values = rows[:, saved["column"]]
        if "top" in saved:
            return first_by_bytes(values, saved["top"])
        is_popular = values > saved["least"]
        if "users" in saved:
            is_popular &= rows[:, saved["users"]] > saved["least_users"]
        return np.asarray(is_popular, float)

    def contributions(self, rows: Array) -> None:
        return None

    def save(self) -> dict[str, Any]:
        return self._saved

    def load(self, saved: Mapping[str, Any]) -> None:
        self._saved = dict(saved)


def _window(measure: str, label: Label, columns: Sequence[str]) -> tuple[str, float]:
    """Return the column of the longest window within the horizon, and its share of it."""
    days = max(
        days
        for days in (7, 14, 28, 56, 182)
        if days <= label.days and f"log_{measure}_{days}d" in columns
    )
    return f"log_{measure}_{days}d", days / label.days
