"""How good predictions are: average precision with an interval, AUC, Brier score,
calibration, rates at 0.5; and the warning where a baseline is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

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


def average_precision(labels: Array, scores: Array) -> float | None:
    """Return the mean precision over the positives, equal scores taken together; None
    without a positive.
    """
    return next(_precisions(labels, scores, [np.ones(len(labels))]), None)


def _precisions(labels: Array, scores: Array, every: Iterable[Array]) -> Iterator[float]:
    """Yield the average precision with the rows counting so many times, for ``every`` of
    these numbers that leave a positive. The rows are sorted once.
    """
    if not labels.any():
        return
    order = np.argsort(-scores, kind="stable")
    ranked, values = labels[order], scores[order]
    is_last = np.append(values[1:] != values[:-1], True)
    for times in every:
        hits, rows = np.cumsum(ranked * times)[is_last], np.cumsum(times)[is_last]
        if hits[-1]:
            # Divided by the positives at the end: a perfect order has exactly 1.
            gained = np.diff(hits, prepend=0) * hits / np.maximum(rows, 1)
            yield float(gained.sum() / hits[-1])


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


def metrics(labels: Array, scores: Array) -> dict[str, Any]:
    """Numbers of one week: rows, positives (share), average_precision with a 90 %
    interval from 200 resamplings of the datasets, auc, brier, calibration_error,
    calibration_bins (predictions less what happened, summed in ten bins), and tpr and tnr
    at 0.5. Null where a rate has no rows.
    """
    count, generator = len(labels), np.random.default_rng(0)
    resamplings = (
        np.bincount(generator.integers(0, count, count), minlength=count) for _ in range(200)
    )
    resampled = list(_precisions(labels, scores, resamplings))
    interval = (
        [float(edge) for edge in np.quantile(resampled, (0.05, 0.95))] if resampled else None
    )
    is_positive, is_predicted = labels > 0, scores >= 0.5
    of_bin = np.bincount(np.minimum((scores * 10).astype(int), 9), scores - labels, 10)
    calibration = {"rows": count, "calibration_bins": of_bin.tolist()}
    return {
        **calibration,
        "positives": float(labels.mean()) if count else None,
        "average_precision": average_precision(labels, scores),
        "average_precision_interval": interval,
        "auc": area_under_curve(labels, scores),
        "brier": float(((scores - labels) ** 2).mean()) if count else None,
        "calibration_error": calibration_error([calibration]),
        "tpr": float(is_predicted[is_positive].mean()) if is_positive.any() else None,
        "tnr": float((~is_predicted[~is_positive]).mean()) if (~is_positive).any() else None,
    }


def calibration_error(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean distance of predictions from what happened, in ten bins of all rows
    of :func:`metrics` together; None without a prediction. In one week bins of few
    datasets are off by chance, and the mean of weeks would be so, too.
    """
    count = sum(row["rows"] for row in rows)
    bins = np.sum([row["calibration_bins"] for row in rows], axis=0)
    return float(np.abs(bins).sum() / count) if count else None


#: Rules that a model has to beat, as names of models.
BASELINES: Final = ("persistence", "last-week", "decayed")


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

    ``rows``: of :func:`cmsspark.apps.popularity.evaluate.judge`, or of the stored
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
