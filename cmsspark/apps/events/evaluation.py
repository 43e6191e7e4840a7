"""How good a classifier is: ROC curves, their areas, the confusion matrix, distributions of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cmsspark.apps.events.layout import CLASSES
from cmsspark.base.errors import DataError

Array = np.ndarray[Any, Any]

#: Points of a stored ROC curve, and bins of a distribution of scores.
CURVE_POINTS: Final = 200
SCORE_BINS: Final = 25
_SMALLEST: Final = 1e-15


@dataclass(frozen=True)
class RocCurve:
    """A class against all others: its share above a threshold, for each share of the others; ``auc``: the area."""

    false_positive: Array
    true_positive: Array
    auc: float


@dataclass(frozen=True)
class Evaluation:
    """``confusion``: events by (true class, most probable class); ``scores``: by (class of the score, true class) the
    numbers of events in bins of the score from 0 to 1.
    """

    events: int
    accuracy: float
    log_loss: float
    curves: tuple[RocCurve, ...]
    confusion: Array
    scores: Array

    @property
    def auc(self) -> float:
        """The mean of the areas of all classes."""
        return float(np.mean([curve.auc for curve in self.curves]))

    @property
    def diagonal(self) -> float:
        """The mean over classes of the share of events that are recognized."""
        return float(np.mean(np.diag(self.confusion) / np.maximum(1, self.confusion.sum(axis=1))))

    def as_dict(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return {
            "events": self.events,
            "accuracy": self.accuracy,
            "auc": self.auc,
            "auc_by_class": {name: curve.auc for name, curve in zip(CLASSES, self.curves, strict=True)},
            "diagonal": self.diagonal,
            "log_loss": self.log_loss,
            "classes": list(CLASSES),
            "confusion": self.confusion.tolist(),
            "roc": {
                name: {"false_positive": curve.false_positive.tolist(), "true_positive": curve.true_positive.tolist()}
                for name, curve in zip(CLASSES, self.curves, strict=True)
            },
        }


def evaluate(labels: Array, probabilities: Array) -> Evaluation:
    """Judge probabilities ``(n, 3)`` by the true ``labels``.

    Raises DataError (65) where probabilities are none: not finite, or not one for each class and event; and where a
    class has no events, as its curve does not exist.
    """
    probabilities = np.asarray(probabilities, np.float64)
    labels = np.asarray(labels, np.int64)
    count = len(CLASSES)
    if probabilities.shape != (len(labels), count) or not np.isfinite(probabilities).all():
        raise DataError(f"{len(labels)} events need {count} finite probabilities each", found=probabilities.shape)
    of_class = np.bincount(labels, minlength=count)
    if len(of_class) != count or not of_class.all():
        raise DataError(
            "events of all classes are wanted for the evaluation",
            found=", ".join(f"{number:,} {name}" for name, number in zip(CLASSES, of_class, strict=False)),
            next_step="take a larger sample",
        )
    guesses = probabilities.argmax(axis=1)
    confusion = np.bincount(labels * count + guesses, minlength=count * count).reshape(count, count)
    own = probabilities[np.arange(len(labels)), labels]
    bins = np.clip((probabilities * SCORE_BINS).astype(np.int64), 0, SCORE_BINS - 1)
    scores = np.array(
        [[np.bincount(bins[labels == true, of], minlength=SCORE_BINS) for true in range(count)] for of in range(count)]
    )
    return Evaluation(
        len(labels),
        float(np.mean(guesses == labels)),
        float(-np.log(np.clip(own, _SMALLEST, 1)).mean()),
        tuple(roc_curve(labels == label, probabilities[:, label]) for label in range(count)),
        confusion,
        scores,
    )


def roc_curve(is_signal: Array, scores: Array) -> RocCurve:
    """The ROC curve of some scores; equal scores are one step, so ties count half in the area.

    Example:
        >>> import numpy as np
        >>> roc_curve(np.array([False, True, False, True]), np.array([0.1, 0.9, 0.4, 0.4])).auc
        0.875
    """
    order = np.argsort(-scores, kind="stable")
    ordered, signal = scores[order], is_signal[order]
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    true_positive = np.concatenate(([0.0], np.cumsum(signal)[ends] / signal.sum()))
    false_positive = np.concatenate(([0.0], np.cumsum(~signal)[ends] / (~signal).sum()))
    steps = np.diff(false_positive)
    auc = float((steps * (true_positive[1:] + true_positive[:-1]) / 2).sum())
    # Of thousands of points a curve needs some hundred, where it is steep and where it is flat.
    length = np.concatenate(([0.0], np.cumsum(steps + np.diff(true_positive))))
    chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], CURVE_POINTS)).clip(0, len(length) - 1))
    return RocCurve(false_positive[chosen], true_positive[chosen], auc)
