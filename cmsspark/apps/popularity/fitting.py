"""Fitted models: learned from all that is known on a day, and calibrated on the latest weeks that are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.models import Model, logistic_weights, make_model, sigmoid
from cmsspark.apps.popularity.training import Training, Weeks

Array = np.ndarray[Any, Any]

#: The weight, for each row that is held out, of a calibration that changes nothing.
_NEAR_ONE: Final = 3.0
#: The least slope of a calibration: whatever one week was like, a higher probability stays the higher one.
_LEAST_SLOPE: Final = 0.2
#: Days that are held out for the calibration.
_HELD_DAYS: Final = 7


@dataclass(frozen=True)
class Fitted:
    """A model that has learned. ``calibration``: slope and shift on the logit scale; None where it has none."""

    name: str
    model: Model
    calibration: Array | None
    training: Training

    def raw(self, rows: Array) -> Array:
        """Probabilities as the model gives them, float64 [rows]."""
        return self.model.predict(rows)

    def calibrated(self, raw: Array) -> Array:
        """Probabilities after the calibration, in the same order."""
        return raw if self.calibration is None else sigmoid(_logit(raw) @ self.calibration)

    def predict(self, rows: Array) -> Array:
        """Calibrated probabilities, float64 [rows]."""
        return self.calibrated(self.raw(rows))


def fit(
    weeks: Weeks, day: int, model_name: str, *, seed: int = 0, is_shuffled: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Fitted:  # fmt: skip
    """The model for the weeks from that day on, from the days before it.

    The calibration comes from the latest week that is over: a model that has not seen it predicts it, and two numbers
    are fitted to what happened. Baselines of 0 and 1 have none. Raises as :meth:`Weeks.training`.
    """
    training = weeks.training(day, seed=seed)
    if is_shuffled:
        training = replace(training, labels=np.random.default_rng(seed).permutation(training.labels))
    model = make_model(model_name, weeks.label, options)
    model.fit(training, seed)
    fitted = Fitted(model_name, model, None, training)
    held = training.days > training.days.max() - _HELD_DAYS
    # Labels of the days just before the held-out week reach into it, and are left out.
    earlier = training.days <= training.days.max() - _HELD_DAYS - (weeks.label.days - 1)
    # What learned from shuffled labels is only ranked, which a calibration does not change.
    if is_shuffled or model_name == "persistence" or earlier.sum() < held.sum():
        return fitted
    without = make_model(model_name, weeks.label, options)
    without.fit(training.where(earlier), seed)
    of_week = training.where(held)
    return replace(fitted, calibration=calibration(without.predict(of_week.rows), of_week.labels, of_week.weights))


def predict(
    weeks: Weeks, day: int, model_name: str, *, seed: int = 0, is_shuffled: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Array:  # fmt: skip
    """Calibrated probabilities, float64 [datasets], for the weeks from that day on, from the days before it."""
    return fit(weeks, day, model_name, seed=seed, is_shuffled=is_shuffled, options=options).predict(weeks.rows(day))


def calibration(held: Array, labels: Array, counts: Array) -> Array:
    """The slope and the shift, on the logit scale, that fit predictions of a held-out week best; both are held near one
    and zero, as one week says little about the next.
    """
    penalty = np.full(2, _NEAR_ONE * counts.sum())
    weights = logistic_weights(_logit(held), labels, penalty, np.array([1.0, 0.0]), counts)
    weights[0] = max(weights[0], _LEAST_SLOPE)
    return weights


def _logit(probability: Array) -> Array:
    clipped = np.clip(probability, 1e-4, 1 - 1e-4)
    return np.stack([np.log(clipped / (1 - clipped)), np.ones(len(clipped))], axis=1)
