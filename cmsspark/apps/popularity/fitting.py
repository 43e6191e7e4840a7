"""Fit models on all that is known on a day, and calibrate them on past forecasts where that helps; expected accesses
and bytes of the coming weeks, with quantiles, by gradient boosting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.models import Model, load_xgboost, logistic_weights, make_model, sigmoid
from cmsspark.apps.popularity.series import MEASURES
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Training, Weeks
from cmsspark.base.arrays import Array

#: The weight, for each row, of a calibration that changes nothing.
_NEAR_ONE: Final = 0.5
#: The least slope of a calibration: whatever the weeks were like, a higher probability stays the higher one.
_LEAST_SLOPE: Final = 0.2
#: Probabilities nearer to 0 and 1 are calibrated as these.
_LEAST: Final = 1e-9
#: The name of a quick model of all columns that learns from shuffled labels, and the rows that it learns from at most.
SHUFFLED: Final = "shuffled"
_SHUFFLED_ROWS: Final = 2_000
#: Past weeks, predicted and over, that a calibration is fitted and judged on.
CALIBRATION_WEEKS: Final = 3
#: A calibration is used where it lowers the squared error of each week that it was not fitted on by this share.
_LEAST_GAIN: Final = 0.01


#: What a model, without a calibration, gave for weeks that are over, and their labels, both of the datasets that had
#: entered before them.
PastWeek = tuple[Array, Array]


@dataclass(frozen=True)
class Fitted:
    """A model that has learned. ``calibration``: slope and shift on the logit scale; None where it has none."""

    name: str
    model: Model
    calibration: Array | None
    training: Training


def fit(weeks: Weeks, day: int, model_name: str, *, seed: int = 0, options: Mapping[str, Any] | None = None) -> Fitted:
    """Fit the model for the weeks from that day on, on what was known before it, and calibrate it where that helps.

    Raises as :meth:`Weeks.training`.
    """
    before = weeks.until(day)
    fitted = _fit_raw(before, day, model_name, seed, options)
    return replace(fitted, calibration=_find_calibration(before, day, model_name, seed, options))


def _fit_raw(before: Weeks, day: int, model_name: str, seed: int, options: Mapping[str, Any] | None) -> Fitted:
    is_shuffled = model_name == SHUFFLED
    training = before.training(day, seed=seed, most=_SHUFFLED_ROWS if is_shuffled else None)
    if is_shuffled:
        training = replace(training, labels=np.random.default_rng(seed).permutation(training.labels))
    model = make_model("logistic" if is_shuffled else model_name, before.label, options)
    model.fit(training, seed)
    return Fitted(model_name, model, None, training)


def past_days(day: int, label: Label) -> list[int]:
    """Return the days, the latest first, whose weeks are over on ``day`` and which a calibration looks at."""
    days = (day - label.days - 7 * back for back in range(CALIBRATION_WEEKS))
    return [past_day for past_day in days if past_day >= FIRST_DAY + label.days]


def _find_calibration(
    before: Weeks, day: int, model_name: str, seed: int, options: Mapping[str, Any] | None
) -> Array | None:
    """Return the calibration by the forecasts of the last weeks that are over on ``day``, each from what was known
    before it; None where none helps. What learned from shuffled labels is only ranked, which none changes.
    """
    if model_name in (SHUFFLED, "persistence"):
        return None
    past = []
    for past_day in past_days(day, before.label):
        raw = raw_forecast(before, past_day, model_name, seed=seed, options=options)
        entered = ~np.isnan(raw)
        past.append((raw[entered], before.label.mark(before.series, past_day)[entered]))
    return helpful_calibration(past)


def raw_forecast(
    weeks: Weeks, day: int, model_name: str, *, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Array:
    """Return a model's own probabilities for the weeks from that day on, float64 [datasets]; NaN for datasets that had
    not entered. Each is made once.
    """
    key = _key(day, model_name, seed, options)
    if key not in weeks.shared.raw:
        before = weeks.until(day)
        model = _fit_raw(before, day, model_name, seed, options).model
        weeks.shared.raw[key] = of_population(before, day, model.predict)
    return weeks.shared.raw[key]


def keep_raw_forecast(weeks: Weeks, day: int, model_name: str, seed: int, scores: Array) -> None:
    """Keep a raw forecast that was made elsewhere."""
    weeks.shared.raw[_key(day, model_name, seed, None)] = scores


def _key(day: int, model_name: str, seed: int, options: Mapping[str, Any] | None) -> tuple[Any, ...]:
    return day, model_name, seed, repr(sorted((options or {}).items()))


def of_population(weeks: Weeks, day: int, predict_rows: Callable[[Array], Array]) -> Array:
    """Return what ``predict_rows`` gives for the rows of the population on that day; NaN for other datasets."""
    entered = weeks.population(day)
    scores = np.full(len(entered), np.nan)
    if entered.any():
        scores[entered] = predict_rows(weeks.rows(day)[entered])
    return scores


def predict(
    weeks: Weeks, day: int, model_name: str, *, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Array:
    """Return calibrated probabilities, float64 [datasets], for the weeks from that day on, from what was known before
    it; NaN for datasets that had not entered.
    """
    before = weeks.until(day)
    raw = raw_forecast(before, day, model_name, seed=seed, options=options)
    return calibrated(raw, _find_calibration(before, day, model_name, seed, options))


def calibrated(raw: Array, weights: Array | None) -> Array:
    """Return probabilities after the calibration, in the same order."""
    return raw if weights is None else sigmoid(_logit(raw) @ weights)


def helpful_calibration(past: Sequence[PastWeek]) -> Array | None:
    """Return the calibration of past weeks; None unless that of the others lowers the error of each of them."""
    if len(past) < CALIBRATION_WEEKS:
        return None
    for number, (raw, labels) in enumerate(past):
        other_weeks = [*past[:number], *past[number + 1 :]]
        before, after = (
            float(((values - labels) ** 2).mean()) if len(values) else 0.0
            for values in (raw, calibrated(raw, _pooled(other_weeks)))
        )
        if after >= (1 - _LEAST_GAIN) * before:
            return None
    return _pooled(past)


def _pooled(past: Sequence[PastWeek]) -> Array:
    raw, labels = (np.concatenate(columns) for columns in zip(*past, strict=True))
    return calibration(raw, labels, np.ones(len(raw)))


def calibration(raw: Array, labels: Array, counts: Array) -> Array:
    """Return the slope and the shift, on the logit scale, that fit predictions of past weeks best; both are held near
    one and zero, as few weeks say little about the next.
    """
    penalty = np.full(2, _NEAR_ONE * counts.sum())
    weights = logistic_weights(_logit(raw), labels, penalty, np.array([1.0, 0.0]), counts)
    weights[0] = max(weights[0], _LEAST_SLOPE)
    return weights


def _logit(probability: Array) -> Array:
    clipped = np.clip(probability, _LEAST, 1 - _LEAST)
    return np.stack([np.log(clipped / (1 - clipped)), np.ones(len(clipped))], axis=1)


QUANTILES: Final = (0.1, 0.5, 0.9)
#: Measures of a series that are expected, by the names of stored columns.
QUANTITIES: Final = {"nacc": "accesses", "bytes": "bytes"}
#: The mean of what has these quantiles, by Swanson's rule: bursts count as far as one in ten weeks has them.
_SWANSON: Final = np.array([0.3, 0.4, 0.3])
_MOST_ROWS: Final = 15_000
_OPTIONS: Final = {
    "objective": "reg:quantileerror",
    "quantile_alpha": list(QUANTILES),
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.1,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
    "min_child_weight": 20,
    "nthread": 1,
}
_ROUNDS: Final = 50


@dataclass(frozen=True)
class Expected:
    """``quantiles``: float64 [datasets, 3], the 10, 50 and 90 % quantiles of a measure in the coming weeks; NaN where a
    dataset has not entered.
    """

    quantiles: Array

    @property
    def mean(self) -> Array:
        """float64 [datasets]: the expected value."""
        return np.asarray(self.quantiles @ _SWANSON)


def expected(weeks: Weeks, day: int, measure: str, *, seed: int = 0) -> Expected | None:
    """Return what the datasets are expected to be used in the weeks from that day on, from what was known before it.

    The quantiles are widened, or narrowed, by what the same model would have needed in the last week that is over. None
    where the series has nothing of the measure, or xgboost is not installed. Raises as :meth:`Weeks.training`.
    """
    before = weeks.until(day)
    values = before.series.values[MEASURES.index(measure)]
    if not values.any() or find_spec("xgboost") is None:
        return None
    correction = np.zeros(2)
    for past in past_days(day, before.label)[:1]:
        logs = _log_quantiles(before, past, measure, seed)
        entered = ~np.isnan(logs[:, 0])
        happened = np.log1p(values[past : past + before.label.days].sum(0))[entered]
        low, high = logs[entered, 0], logs[entered, 2]
        if entered.any():
            correction = np.array([_shift(low - happened), _shift(happened - high)])
    logs = _log_quantiles(before, day, measure, seed)
    logs[:, 0] -= correction[0]
    logs[:, 2] += correction[1]
    logs[:, 0], logs[:, 2] = np.minimum(logs[:, 0], logs[:, 1]), np.maximum(logs[:, 2], logs[:, 1])
    return Expected(np.expm1(np.maximum(logs, 0)))


def _shift(excess: Array) -> float:
    """Return by how much a quantile was passed by more than a tenth; half of it, and at most a factor of e, as one week
    says little of the next.
    """
    return float(np.clip(np.quantile(excess, QUANTILES[2]) / 2, -1, 1))


def _log_quantiles(weeks: Weeks, day: int, measure: str, seed: int) -> Array:
    """Return float64 [datasets, 3]: quantiles of log(1 + x) by a model of what was known before that day."""
    before = weeks.until(day)
    training = before.training(day, seed=seed, most=_MOST_ROWS)
    values = before.series.values[MEASURES.index(measure)]
    target = np.empty(len(training.rows))
    for day_number in np.unique(training.days):
        where = training.days == day_number
        week = values[day_number : day_number + before.label.days].sum(0)
        target[where] = np.log1p(week[training.datasets[where]])
    base = before.columns.index(f"log_{measure}_decayed")
    xgboost = load_xgboost()
    residual = target - training.rows[:, base]
    matrix = xgboost.QuantileDMatrix(training.rows, residual, weight=training.weights)
    trees = xgboost.train({**_OPTIONS, "seed": seed}, matrix, _ROUNDS)

    def quantiles(number: int) -> Array:
        return of_population(
            before, day, lambda rows: trees.predict(xgboost.DMatrix(rows))[:, number] + rows[:, base]
        )  # fmt: skip

    logs = np.sort(np.stack([quantiles(number) for number in range(len(QUANTILES))], axis=1), axis=1)
    # Nothing is expected beyond what a dataset ever had.
    return np.asarray(np.minimum(logs, target.max()))
