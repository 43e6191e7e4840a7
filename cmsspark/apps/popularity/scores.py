"""How good predictions are: average precision, AUC, Brier score, rates at 0.5, with intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cmsspark.base.arrays import Array


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
    """Return the mean precision over the positives, equal scores taken together; None
    without a positive.
    """
    if not labels.any():
        return None
    order = np.argsort(-scores, kind="stable")
    ranked, values = labels[order], scores[order]
    is_last = np.append(values[1:] != values[:-1], True)
    hits, count = np.cumsum(ranked)[is_last], np.arange(1, len(ranked) + 1)[is_last]
    # Divided by the positives at the end: a perfect order has exactly 1.
    return float((np.diff(hits, prepend=0) * hits / count).sum() / ranked.sum())


def area_under_curve(labels: Array, scores: Array) -> float | None:
    """Return the probability that a positive has the higher score, ties half; None
    without both kinds.
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    return float(
        (ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    )


def _resampled_precisions(
    labels: Array, scores: Array, generator: np.random.Generator
) -> list[float]:
    """Return the average precision of 200 resamplings of the rows, those without a
    positive left out.

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
            resampled.append(
                float((np.diff(hits, prepend=0) * hits / np.maximum(rows, 1)).sum() / hits[-1])
            )
    return resampled


def metrics(labels: Array, scores: Array) -> dict[str, Any]:
    """Numbers of one week: rows, positives (share), average_precision with a 90 %
    interval from 200 resamplings of the datasets, auc, brier, and tpr and tnr at 0.5.
    Null where a rate has no rows.
    """
    resampled = _resampled_precisions(labels, scores, np.random.default_rng(0))
    interval = (
        [float(edge) for edge in np.quantile(resampled, (0.05, 0.95))] if resampled else None
    )
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
