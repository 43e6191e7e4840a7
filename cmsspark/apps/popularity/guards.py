"""Checks that no feature knows the week that it predicts; each evaluation runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.fitting import predict
from cmsspark.apps.popularity.scores import average_precision
from cmsspark.apps.popularity.training import Weeks
from cmsspark.base.errors import DataError

Array = np.ndarray[Any, Any]

#: A column that ranks datasets as the predicted week does, this closely, is taken for a leak.
_LEAK: Final = 0.995
#: Average precision of shuffled labels may lie this far above the share of positives.
_SHUFFLED_ROOM: Final = 0.15
#: Shuffles of each day at least, and of all days together: three alone may all find the same direction by chance.
_SHUFFLES: Final = 3
_ALL_SHUFFLES: Final = 12
#: The model that learns from shuffled labels: quick, and it sees all columns.
SHUFFLED_MODEL: Final = "logistic"


def check_guards(weeks: Weeks, days: Sequence[int], *, seed: int = 0) -> None:
    """Three checks that no feature knows the week that it predicts. Raises DataError (65).

    Features of a day are bit-identical when all later days are deleted; no column ranks datasets as the predicted week
    itself does; a model of shuffled labels has the precision of guessing.
    """
    check_later_days(weeks, days)
    check_columns(weeks, days)
    wanted = shuffles(seed, days)
    check_shuffled(
        weeks, [(day, predict(weeks, day, SHUFFLED_MODEL, seed=each, is_shuffled=True)) for day, each in wanted]
    )


def check_later_days(weeks: Weeks, days: Sequence[int]) -> None:
    """Features of a day are bit-identical when all later days are deleted, and with them the datasets that only later
    days have. Raises DataError (65).
    """
    for day in days:
        series = weeks.series.until(day)
        known = np.nonzero(series.is_known)[0]
        # Other tiers and campaigns may be common among the datasets of fewer days.
        whole, same = _shared(weeks, Weeks(series, weeks.label), day)
        if not np.array_equal(whole, same):
            raise DataError(f"features of {weeks.series.days[day]} change when later days are deleted")
        whole, fewer = _shared(weeks, Weeks(series.only(known), weeks.label), day)
        # The order of a sum depends on the shape of what is summed.
        if not np.allclose(whole[known], fewer, rtol=1e-12, atol=1e-12):
            found = "datasets that only later days have change features of others"
            raise DataError(f"features of {weeks.series.days[day]} change when later days are deleted", found=found)


def _shared(one: Weeks, other: Weeks, day: int) -> tuple[Array, Array]:
    """The rows of both on a day, in the columns that both have: all but flags."""
    shared = [name for name in one.columns if name in other.columns]
    left, right = (each.rows(day)[:, [each.columns.index(name) for name in shared]] for each in (one, other))
    return left, right


def shuffles(seed: int, days: Sequence[int]) -> list[tuple[int, int]]:
    """(day, seed) of each shuffle of the labels: three of each day, more where there are few days."""
    count = max(_SHUFFLES, -(-_ALL_SHUFFLES // max(len(days), 1)))
    return [(day, seed + _SHUFFLES * day + number) for day in days for number in range(count)]


def check_shuffled(weeks: Weeks, scores: Sequence[tuple[int, Array]]) -> None:
    """A model of shuffled labels has the average precision of guessing, in the mean of days and shuffles. ``scores``:
    (day, what such a model predicted for it). Raises DataError (65).

    Such a model ranks by some direction of the features. Where few datasets are popular, one direction is much better
    than guessing by chance, and the next one worse; what knows the week is better each time.
    """
    excess = []
    for day, predicted in scores:
        labels = weeks.label.of(weeks.series, day)
        precision = average_precision(labels, predicted)
        if precision is not None:
            excess.append(precision - float(labels.mean()))
    room = max(_SHUFFLED_ROOM, 2 * float(np.std(excess))) if excess else 0.0
    if excess and np.mean(excess) > room:
        raise DataError(
            "a model of shuffled labels is better than guessing",
            found=f"average precision {np.mean(excess):.2f} above the share of popular datasets",
            next_step="look for a feature that knows the week: cmsspark popularity columns",
        )


def check_columns(weeks: Weeks, days: Sequence[int]) -> None:
    """No column ranks datasets as the predicted week itself does. Raises DataError (65)."""
    week = np.concatenate([weeks.series.accesses[day : day + weeks.label.days].sum(0) for day in days])
    rows = np.concatenate([weeks.rows(day) for day in days])
    is_used = week > 0
    if is_used.sum() < 20:
        return
    wanted = _ranks(week[is_used])
    if not wanted.std():
        return
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
