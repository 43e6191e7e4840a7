"""Rolling-forward evaluation: for each week, models learn from what was known on its Monday, and predict it.

A training row is a dataset on an earlier day, with features of the days before that day and the label of the weeks
from that day on, which are over on the Monday.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cmsspark.errors import DataError, InputMissing
from cmsspark.popularity.features import Names, features
from cmsspark.popularity.models import logistic_weights, make_model, sigmoid
from cmsspark.popularity.scores import average_precision, metrics
from cmsspark.popularity.series import MEASURES, Series

Array = np.ndarray[Any, Any]

#: Days of history before the first row that is learned from.
FIRST_DAY: Final = 7
#: The weight, for each row of the held-out week, of a calibration that changes nothing.
_NEAR_ONE: Final = 0.3
#: The least slope of a calibration: whatever one week was like, a higher probability stays the higher one.
_LEAST_SLOPE: Final = 0.2
#: A column that ranks datasets as the predicted week does, this closely, is taken for a leak.
_LEAK: Final = 0.995
#: Average precision of shuffled labels may lie this far above the share of positives.
_SHUFFLED_ROOM: Final = 0.15


@dataclass(frozen=True)
class Label:
    """What popular means: above ``threshold`` accesses, and above ``users`` users where given, in ``weeks`` weeks."""

    threshold: float = 10
    users: float | None = None
    weeks: int = 1

    @property
    def days(self) -> int:
        """The horizon in days."""
        return 7 * self.weeks

    def of(self, series: Series, day: int) -> Array:
        """float64 [datasets], 1 where popular in the weeks from that day on."""
        after = slice(day, day + self.days)
        is_popular = series.accesses[after].sum(0) > self.threshold
        if self.users is not None:
            is_popular &= series.values[MEASURES.index("users"), after].sum(0) > self.users
        return np.asarray(is_popular, float)


@dataclass
class Weeks:
    """Features and labels of each day, made once. A day's features come from a series that ends before it."""

    series: Series
    label: Label
    _made: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = Names(self.series.datasets)
        self.columns, _ = features(self.series.until(FIRST_DAY), self._names)

    def rows(self, day: int) -> Array:
        """float64 [datasets, columns] on that day."""
        if day not in self._made:
            _, self._made[day] = features(self.series.until(day), self._names)
        return self._made[day]

    def training(self, day: int) -> tuple[Array, Array, int]:
        """(rows, labels, days) of all earlier days whose horizon is over on that day."""
        days = range(FIRST_DAY, day - self.label.days + 1)
        if not len(days):
            raise InputMissing(
                f"nothing can be learned for {self.series.days[day] if day < len(self.series.days) else 'that week'}",
                found=f"{day} days before it",
                next_step=f"give at least {FIRST_DAY + self.label.days} days",
            )
        rows = np.concatenate([self.rows(each) for each in days])
        return rows, np.concatenate([self.label.of(self.series, each) for each in days]), len(days)


def predict(weeks: Weeks, day: int, model_name: str, *, seed: int = 0, is_shuffled: bool = False) -> Array:
    """Calibrated probabilities, float64 [datasets], for the weeks from that day on, from the days before it.

    The calibration comes from the latest week that is over: a model that has not seen it predicts it, and two numbers
    are fitted to what happened. Baselines of 0 and 1 stay as they are.
    """
    rows, labels, day_count = weeks.training(day)
    if is_shuffled:
        labels = np.random.default_rng(seed).permutation(labels)
    model = make_model(model_name, weeks.label.threshold)
    model.fit(rows, labels, weeks.columns, seed)
    raw = model.predict(weeks.rows(day))
    held = 7 * len(weeks.series.datasets)
    gap = (weeks.label.days - 1) * len(weeks.series.datasets)
    if model_name == "persistence" or day_count * len(weeks.series.datasets) < 2 * held + gap:
        return raw
    earlier = make_model(model_name, weeks.label.threshold)
    # Labels of the days just before the held-out week reach into it, and are left out.
    earlier.fit(rows[: -held - gap], labels[: -held - gap], weeks.columns, seed)
    return _calibrated(raw, earlier.predict(rows[-held:]), labels[-held:])


def _calibrated(raw: Array, held: Array, labels: Array) -> Array:
    """``raw`` with the slope and the shift, on the logit scale, that fit a held-out week best; both are held near one
    and zero, as one week says little about the next.
    """
    weights = logistic_weights(_logit(held), labels, np.full(2, _NEAR_ONE * len(labels)), start=np.array([1.0, 0.0]))
    weights[0] = max(weights[0], _LEAST_SLOPE)
    return sigmoid(_logit(raw) @ weights)


def _logit(probability: Array) -> Array:
    clipped = np.clip(probability, 1e-4, 1 - 1e-4)
    return np.stack([np.log(clipped / (1 - clipped)), np.ones(len(clipped))], axis=1)


def strata(series: Series, day: int) -> Mapping[str, Array]:
    """bool [datasets] each: active (used in the last week), dormant (used before that), new (never used before)."""
    used = series.accesses[:day] > 0
    active, ever = np.asarray(used[max(day - 7, 0) :].any(0)), np.asarray(used.any(0))
    return {"active": active, "dormant": ever & ~active, "new": ~ever}


def evaluate(
    series: Series, label: Label, models: Sequence[str], *, weeks: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """A row for each week and model: the week's Monday, :func:`metrics`, and those of the strata.

    ``weeks``: the last so many only. Raises InputMissing (66) where no week can be predicted, DataError (65) where a
    guard fails.
    """
    every = Weeks(series, label)
    mondays = [day for day in series.mondays(label.weeks) if day - label.days >= FIRST_DAY + 7]
    chosen = mondays[-weeks:] if weeks else mondays
    if not chosen:
        raise InputMissing(
            "no week can be predicted",
            found=f"{len(series.days)} days from {series.days[0]} on",
            next_step=f"give at least {FIRST_DAY + 14 + 2 * label.days} days",
        )
    check_guards(every, chosen, seed=seed)
    rows = []
    for day in chosen:
        labels = label.of(series, day)
        for name in models:
            scores = predict(every, day, name, seed=seed)
            parts = {part: metrics(labels[where], scores[where]) for part, where in strata(series, day).items()}
            rows.append({"week": series.days[day], "model": name, **metrics(labels, scores), "strata": parts})
    return rows


def check_guards(weeks: Weeks, days: Sequence[int], *, seed: int = 0) -> None:
    """Three checks that no feature knows the week that it predicts. Raises DataError (65).

    Features of a day are bit-identical when all later days are deleted; no column ranks datasets as the predicted week
    itself does; a model of shuffled labels has the precision of guessing.
    """
    for day in days:
        cut = Weeks(weeks.series.until(day), weeks.label)
        if not np.array_equal(cut.rows(day), weeks.rows(day)):
            raise DataError(f"features of {weeks.series.days[day]} change when later days are deleted")
    _check_columns(weeks, days)
    excess = []
    for day in days:
        labels = weeks.label.of(weeks.series, day)
        precision = average_precision(labels, predict(weeks, day, "logistic", seed=seed, is_shuffled=True))
        if precision is not None:
            excess.append(precision - float(labels.mean()))
    if excess and np.mean(excess) > _SHUFFLED_ROOM:
        raise DataError("a model of shuffled labels is better than guessing", found=f"by {np.mean(excess):.2f}")


def _check_columns(weeks: Weeks, days: Sequence[int]) -> None:
    week = np.concatenate([weeks.series.accesses[day : day + weeks.label.days].sum(0) for day in days])
    rows = np.concatenate([weeks.rows(day) for day in days])
    is_used = week > 0
    if is_used.sum() < 20:
        return
    wanted = _ranks(week[is_used])
    for number, name in enumerate(weeks.columns):
        ranks = _ranks(rows[is_used, number])
        if ranks.std() and abs(np.corrcoef(wanted, ranks)[0, 1]) > _LEAK:
            raise DataError(
                f"the feature {name} knows the week that is predicted",
                found=f"rank correlation {np.corrcoef(wanted, ranks)[0, 1]:.3f} with its accesses",
                next_step="leave the column out",
            )


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])
