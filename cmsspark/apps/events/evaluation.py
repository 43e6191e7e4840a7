"""How good a classifier is: ROC curves, their areas, the confusion matrix,
distributions of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

#: Points of a stored ROC curve, and bins of a distribution of scores.
CURVE_POINTS: Final = 200
SCORE_BINS: Final = 25
_SMALLEST: Final = 1e-15


@dataclass(frozen=True)
class RocCurve:
    """A class against all others: its share above a threshold, for each share of the
    others; ``auc``: the area.
    """

    false_positive: Array
    true_positive: Array
    auc: float


@dataclass(frozen=True)
class Evaluation:
    """``confusion``: events by (true class, most probable class); ``scores``: by (class
    of the score, true class) the numbers of events in bins of the score from 0 to 1.
    With weights these are sums of weights.

    ``classes``: names and titles; ``score_means``: by (class of the score, true class)
    the mean score.
    """

    classes: tuple[tuple[str, str], ...]
    events: int
    accuracy: float
    log_loss: float
    curves: tuple[RocCurve, ...]
    confusion: Array
    scores: Array
    score_means: Array

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(name for name, _ in self.classes)

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the classes."""
        return tuple(title for _, title in self.classes)

    @property
    def auc_by_class(self) -> dict[str, float]:
        """The area of each class."""
        return {name: curve.auc for name, curve in zip(self.names, self.curves, strict=True)}

    @property
    def auc(self) -> float:
        """The mean of the areas of all classes."""
        return float(np.mean([curve.auc for curve in self.curves]))

    @property
    def diagonal(self) -> float:
        """The mean over classes of the share of events that are recognized."""
        return float(np.mean(np.diag(shares(self.confusion))))

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``."""
        return {
            "events": self.events,
            "accuracy": self.accuracy,
            "auc": self.auc,
            "auc_by_class": self.auc_by_class,
            "diagonal": self.diagonal,
            "log_loss": self.log_loss,
            "classes": list(self.names),
            "confusion": self.confusion.tolist(),
            "roc": {
                name: {
                    "false_positive": curve.false_positive.tolist(),
                    "true_positive": curve.true_positive.tolist(),
                }
                for name, curve in zip(self.names, self.curves, strict=True)
            },
        }


def shares(counts: Array) -> Array:
    """Return the parts of each row of its sum; zeros where that is not above 0."""
    totals = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.where(totals > 0, totals, np.inf))


def evaluate(
    labels: Array,
    probabilities: Array,
    classes: tuple[tuple[str, str], ...],
    weights: Array | None = None,
) -> Evaluation:
    """Judge probabilities ``(n, classes)`` by the true ``labels``; ``weights`` may be negative.

    Raises DataError (65) where probabilities are none: not finite, or not one for each
    class and event; and where a class has no events, or no weight above 0, as its curve
    does not exist.
    """
    probabilities = np.asarray(probabilities, np.float64)
    labels = np.asarray(labels, np.int64)
    count = len(classes)
    if probabilities.shape != (len(labels), count) or not np.isfinite(probabilities).all():
        raise DataError(
            f"{len(labels)} events need {count} finite probabilities each",
            found=probabilities.shape,
        )
    is_weighted = weights is not None and not (weights == 1).all()
    weight = np.asarray(weights, np.float64) if is_weighted else np.ones(len(labels), np.int64)
    of_class = _sums(labels, weight, count)
    if len(of_class) != count or not (of_class > 0).all():
        raise DataError(
            "the evaluation needs events of all classes, with weights that add up to more than 0",
            found=", ".join(
                f"{number:,} {name}" for (name, _), number in zip(classes, of_class, strict=False)
            ),
            next_step="take a larger sample",
        )
    guesses = probabilities.argmax(axis=1)
    confusion = _sums(labels * count + guesses, weight, count * count).reshape(count, count)
    of_label = probabilities[np.arange(len(labels)), labels]
    bins = np.clip((probabilities * SCORE_BINS).astype(np.int64), 0, SCORE_BINS - 1)
    scores = np.array(
        [
            [
                _sums(bins[labels == true, of], weight[labels == true], SCORE_BINS)
                for true in range(count)
            ]
            for of in range(count)
        ]
    )
    return Evaluation(
        classes,
        len(labels),
        float(np.average(guesses == labels, weights=weight)),
        float(-np.average(np.log(np.clip(of_label, _SMALLEST, 1)), weights=weight)),
        tuple(
            roc_curve(labels == label, probabilities[:, label], weight) for label in range(count)
        ),
        confusion,
        scores,
        np.stack(
            [np.bincount(labels, weight * score, count) / of_class for score in probabilities.T]
        ),
    )


def _sums(bins: Array, weight: Array, size: int) -> Array:
    """Return the sums of weights by place: whole numbers where events are counted."""
    sums = np.bincount(bins, weight, minlength=size)
    return sums if weight.dtype.kind == "f" else sums.astype(np.int64)


def roc_curve(is_signal: Array, scores: Array, weights: Array | None = None) -> RocCurve:
    """Return the ROC curve of some scores; equal scores are one step, so ties count
    half in the area.

    With negative weights a curve may go back in places; its area is the sum with these signs.

    Example:
        >>> import numpy as np
        >>> roc_curve(np.array([False, True, False, True]), np.array([0.1, 0.9, 0.4, 0.4])).auc
        0.875
    """
    order = np.argsort(-scores, kind="stable")
    ordered, signal = scores[order], is_signal[order]
    weight = np.ones(len(scores)) if weights is None else weights[order].astype(np.float64)
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    of_signal, of_others = weight * signal, weight * ~signal
    true_positive = np.concatenate(([0.0], np.cumsum(of_signal)[ends] / of_signal.sum()))
    false_positive = np.concatenate(([0.0], np.cumsum(of_others)[ends] / of_others.sum()))
    steps = np.diff(false_positive)
    auc = float((steps * (true_positive[1:] + true_positive[:-1]) / 2).sum())
    # Of thousands of points a curve needs some hundred, where it is steep and where it is flat.
    length = np.concatenate(([0.0], np.cumsum(np.abs(steps) + np.abs(np.diff(true_positive)))))
    chosen = np.unique(
        np.searchsorted(length, np.linspace(0, length[-1], CURVE_POINTS)).clip(0, len(length) - 1)
    )
    return RocCurve(false_positive[chosen], true_positive[chosen], auc)
