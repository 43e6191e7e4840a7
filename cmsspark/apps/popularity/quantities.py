"""Expected accesses and bytes of the coming weeks, with quantiles, by gradient boosting."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import numpy as np

from cmsspark.apps.popularity.fitting import of_population, past_days
from cmsspark.apps.popularity.models import load_xgboost
from cmsspark.apps.popularity.series import MEASURES
from cmsspark.apps.popularity.training import Weeks
from cmsspark.base.arrays import Array

QUANTILES: Final = (0.1, 0.5, 0.9)
#: Measures of a series that are expected, by the names of stored columns.
QUANTITIES: Final = {"nacc": "accesses", "bytes": "bytes"}
#: The mean of what has these quantiles, by Swanson's rule: bursts count as far as one
#: in ten weeks has them.
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
    """``quantiles``: float64 [datasets, 3], the 10, 50 and 90 % quantiles of a measure
    in the coming weeks; NaN where a dataset has not entered.
    """

    quantiles: Array

    @property
    def mean(self) -> Array:
        """float64 [datasets]: the expected value."""
        return np.asarray(self.quantiles @ _SWANSON)


def expected(weeks: Weeks, day: int, measure: str, *, seed: int = 0) -> Expected | None:
    """Return what the datasets are expected to be used in the weeks from that day on,
    from what was known before it.

    The quantiles are widened, or narrowed, by what the same model would have needed in
    the last week that is over. None where the series has nothing of the measure, or
    xgboost is not installed. Raises as :meth:`Weeks.training`.
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
    """Return by how much a quantile was passed by more than a tenth; half of it, and at
    most a factor of e, as one week says little of the next.
    """
    return float(np.clip(np.quantile(excess, QUANTILES[2]) / 2, -1, 1))


def _log_quantiles(weeks: Weeks, day: int, measure: str, seed: int) -> Array:
    """Return float64 [datasets, 3]: quantiles of log(1 + x) by a model of what was
    known before that day.
    """
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
            before,
            day,
            lambda rows: trees.predict(xgboost.DMatrix(rows))[:, number] + rows[:, base],
        )

    logs = np.sort(
        np.stack([quantiles(number) for number in range(len(QUANTILES))], axis=1), axis=1
    )
    # Nothing is expected beyond what a dataset ever had.
    return np.asarray(np.minimum(logs, target.max()))
