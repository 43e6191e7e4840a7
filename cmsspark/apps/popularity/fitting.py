"""Fit models on all that is known on a day, and calibrate them on past forecasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cmsspark.apps.popularity.models import Model, logistic_weights, make_model, sigmoid
from cmsspark.apps.popularity.training import FIRST_DAY, PERSISTENCE, Label, Training, Weeks
from cmsspark.base.arrays import Array

#: The weight, in rows, of a calibration that changes nothing.
_NEAR_ONE: Final = 10.0
#: The least slope of a calibration: whatever the weeks were like, a higher probability
#: stays the higher one.
_LEAST_SLOPE: Final = 0.2
#: Probabilities nearer to 0 and 1 are calibrated as these.
_LEAST: Final = 1e-6
#: The name of a quick model of all columns that learns from shuffled labels, and the
#: rows that it learns from at most.
SHUFFLED: Final = "shuffled"
_SHUFFLED_ROWS: Final = 2_000
#: Past weeks, predicted and over, that a calibration is fitted on.
CALIBRATION_WEEKS: Final = 3


@dataclass(frozen=True)
class Fitted:
    """A model that has learned. ``calibration``: slope and shift on the logit scale;
    None where it has none.
    """

    name: str
    model: Model
    calibration: Array | None
    training: Training


def fit(weeks: Weeks, day: int, model_name: str, *, seed: int = 0) -> Fitted:
    """Fit the model for the weeks from that day on, on what was known before it, and
    calibrate it.

    Raises as :meth:`Weeks.training`.
    """
    before = weeks.until(day)
    fitted = _fit_raw(before, day, model_name, seed)
    return replace(fitted, calibration=_find_calibration(before, day, model_name, seed))


def _fit_raw(before: Weeks, day: int, model_name: str, seed: int) -> Fitted:
    is_shuffled = model_name == SHUFFLED
    most = _SHUFFLED_ROWS if is_shuffled else None
    may_be_empty = model_name == PERSISTENCE
    training = before.training(day, seed=seed, most=most, may_be_empty=may_be_empty)
    if is_shuffled:
        training = replace(
            training, labels=np.random.default_rng(seed).permutation(training.labels)
        )
    model = make_model("logistic" if is_shuffled else model_name, before.label)
    model.fit(training, seed)
    return Fitted(model_name, model, None, training)


def past_days(day: int, label: Label) -> list[int]:
    """Return the days, the latest first, whose weeks are over on ``day`` and which a
    calibration looks at.
    """
    days = (day - label.days - 7 * back for back in range(CALIBRATION_WEEKS))
    return [past_day for past_day in days if past_day >= FIRST_DAY + label.days]


def _find_calibration(before: Weeks, day: int, model_name: str, seed: int) -> Array | None:
    """Return the calibration by the forecasts of the last weeks that are over on
    ``day``, each from what was known before it; None without one. What learned from
    shuffled labels is only ranked, which none changes.
    """
    days = past_days(day, before.label)
    if model_name in (SHUFFLED, PERSISTENCE) or not days:
        return None
    past = []
    for past_day in days:
        raw = raw_forecast(before, past_day, model_name, seed=seed)
        entered = ~np.isnan(raw)
        past.append((raw[entered], before.label.mark(before.series, past_day)[entered]))
    raw, labels = (np.concatenate(columns) for columns in zip(*past, strict=True))
    return calibration(raw, labels)


def raw_forecast(weeks: Weeks, day: int, model_name: str, *, seed: int = 0) -> Array:
    """Return a model's own probabilities for the weeks from that day on, float64
    [datasets]; NaN for datasets that had not entered. Each is made once.
    """
    key = (day, model_name, seed)
    if key not in weeks.shared.raw:
        before = weeks.until(day)
        model = _fit_raw(before, day, model_name, seed).model
        weeks.shared.raw[key] = of_population(before, day, model.predict)
    return weeks.shared.raw[key]


def keep_raw_forecast(weeks: Weeks, day: int, model_name: str, seed: int, scores: Array) -> None:
    """Keep a raw forecast that was made elsewhere."""
    weeks.shared.raw[(day, model_name, seed)] = scores


def of_population(weeks: Weeks, day: int, predict_rows: Callable[[Array], Array]) -> Array:
    """Return what ``predict_rows`` gives for the rows of the population on that day;
    NaN for other datasets.
    """
    entered = weeks.population(day)
    scores = np.full(len(entered), np.nan)
    if entered.any():
        scores[entered] = predict_rows(weeks.rows(day)[entered])
    return scores


def predict(weeks: Weeks, day: int, model_name: str, *, seed: int = 0) -> Array:
    """Return calibrated probabilities, float64 [datasets], for the weeks from that day
    on, from what was known before it; NaN for datasets that had not entered.
    """
    before = weeks.until(day)
    raw = raw_forecast(before, day, model_name, seed=seed)
    return calibrated(raw, _find_calibration(before, day, model_name, seed))


def calibrated(raw: Array, weights: Array | None) -> Array:
    """Return probabilities after the calibration, in the same order."""
    return raw if weights is None else sigmoid(_logit(raw) @ weights)


def calibration(raw: Array, labels: Array) -> Array:
    """Return the slope and the shift, on the logit scale, that fit predictions of past
    weeks best. A mean of several models is too timid at both ends, which the slope undoes.
    """
    penalty, start = np.full(2, _NEAR_ONE), np.array([1.0, 0.0])
    weights = logistic_weights(_logit(raw), labels, penalty, start)
    weights[0] = max(weights[0], _LEAST_SLOPE)
    return weights


def _logit(probability: Array) -> Array:
    clipped = np.clip(probability, _LEAST, 1 - _LEAST)
    return np.stack([np.log(clipped / (1 - clipped)), np.ones(len(clipped))], axis=1)
