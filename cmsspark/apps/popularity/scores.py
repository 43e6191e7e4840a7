"""How good predictions are: average precision, AUC, Brier score, rates at 0.5, with intervals; and rules that a model
has to beat, with the warning where it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.training import Label, Training, first_by_bytes
from cmsspark.base.arrays import Array
from cmsspark.base.text.terminal import pluralize


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without one.

    Example:
        >>> mean([0.5, None, 1.0]), mean([None])
        (0.75, None)
    """
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def format_score(value: float | None) -> str:
    """Return a score for a page, with three digits; a dash for None."""
    return "–" if value is None else f"{value:.3f}"


def average_precision(labels: Array, scores: Array) -> float | None:
    """Return the mean precision over the positives, equal scores taken together; None without a positive."""
    if not labels.any():
        return None
    order = np.argsort(-scores, kind="stable")
    ranked, values = labels[order], scores[order]
    is_last = np.append(values[1:] != values[:-1], True)
    hits, count = np.cumsum(ranked)[is_last], np.arange(1, len(ranked) + 1)[is_last]
    # Divided by the positives at the end: a perfect order has exactly 1.
    return float((np.diff(hits, prepend=0) * hits / count).sum() / ranked.sum())


def area_under_curve(labels: Array, scores: Array) -> float | None:
    """Return the probability that a positive has the higher score, ties half; None without both kinds."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _resampled_precisions(labels: Array, scores: Array, generator: np.random.Generator) -> list[float]:
    """Return the average precision of 200 resamplings of the rows, those without a positive left out.

    The rows are sorted once; a resampling says how often each counts.
    """
    count = len(labels)
    if not labels.any():
        return []
    order = np.argsort(-scores, kind="stable")
    ranked, values = labels[order], scores[order]
    is_last = np.append(values[1:] != values[:-1], True)
    resampled = []
    for _ in range(200):
        times = np.bincount(generator.integers(0, count, count), minlength=count)
        hits, rows = np.cumsum(ranked * times)[is_last], np.cumsum(times)[is_last]
        if hits[-1]:
            resampled.append(float((np.diff(hits, prepend=0) * hits / np.maximum(rows, 1)).sum() / hits[-1]))
    return resampled


def metrics(labels: Array, scores: Array) -> dict[str, Any]:
    """Numbers of one week: rows, positives (share), average_precision with a 90 % interval from 200 resamplings of the
    datasets, auc, brier, and tpr and tnr at 0.5. Null where a rate has no rows.
    """
    resampled = _resampled_precisions(labels, scores, np.random.default_rng(0))
    interval = [float(edge) for edge in np.quantile(resampled, (0.05, 0.95))] if resampled else None
    is_positive, is_predicted = labels > 0, scores >= 0.5
    return {
        "rows": len(labels),
        "positives": float(labels.mean()) if len(labels) else None,
        "average_precision": average_precision(labels, scores),
        "average_precision_interval": interval,
        "auc": area_under_curve(labels, scores),
        "brier": float(((scores - labels) ** 2).mean()) if len(labels) else None,
        "tpr": float(is_predicted[is_positive].mean()) if is_positive.any() else None,
        "tnr": float((~is_predicted[~is_positive]).mean()) if (~is_positive).any() else None,
    }


#: Their names, as models.
BASELINES: Final = ("persistence", "last-week", "decayed")


def select_measure(label: Label) -> str:
    """Return the measure that the baselines count: accesses, or bytes where the label is by bytes."""
    return "accesses" if label.top_bytes is None else "bytes"


def with_baselines(models: Sequence[str]) -> tuple[str, ...]:
    """Return the models, each once, after all baselines; without a model that is none, as they are."""
    if all(name in BASELINES for name in models):
        return tuple(dict.fromkeys(models))
    return tuple(dict.fromkeys((*BASELINES, *models)))


def warnings(rows: Sequence[Mapping[str, Any]], model: str) -> list[str]:
    """Return a warning where a baseline was better than the model in the judged weeks, in the mean, to three decimals.

    ``rows``: of :func:`cmsspark.apps.popularity.evaluate.judged`, or of the stored quality, all datasets together.
    """
    if model in BASELINES:
        return []
    means = {
        name: mean(row["average_precision"] for row in rows if row["model"] == name) for name in (model, *BASELINES)
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
    """What was popular in the last weeks will be, by the same rule; weeks: the longest window of the features that the
    horizon holds (1, 2, 4, 8 or 26 weeks; for bytes and users 1 or 4), the threshold in its share.
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
        self._saved = {"column": columns.index(name), "least": float(np.log1p(label.threshold * share))}
        if label.users is not None:
            users, share = _window("users", label, columns)
            self._saved |= {"users": columns.index(users), "least_users": float(np.log1p(label.users * share))}

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
    days = max(days for days in (7, 14, 28, 56, 182) if days <= label.days and f"log_{measure}_{days}d" in columns)
    return f"log_{measure}_{days}d", days / label.days
