"""Checks that no feature knows the week that it predicts; each evaluation runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cmsspark.errors import DataError
from cmsspark.popularity.fitting import predict
from cmsspark.popularity.scores import average_precision
from cmsspark.popularity.training import Weeks

Array = np.ndarray[Any, Any]

#: A column that ranks datasets as the predicted week does, this closely, is taken for a leak.
_LEAK: Final = 0.995
#: Average precision of shuffled labels may lie this far above the share of positives.
_SHUFFLED_ROOM: Final = 0.15


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
