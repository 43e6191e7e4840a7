"""Rolling-forward evaluation: for each week, models learn from what was known on its Monday, and predict it.

A training row is a dataset on an earlier day, with features of the days before that day and the label of the weeks
from that day on, which are over on the Monday.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cmsspark.errors import InputMissing
from cmsspark.popularity.fitting import predict
from cmsspark.popularity.guards import check_guards
from cmsspark.popularity.scores import metrics
from cmsspark.popularity.series import Series
from cmsspark.popularity.training import FIRST_DAY, Label, Weeks

Array = np.ndarray[Any, Any]


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
    names = list(dict.fromkeys(models))
    for day in chosen:
        labels = label.of(series, day)
        for name in names:
            scores = predict(every, day, name, seed=seed)
            parts = {part: metrics(labels[where], scores[where]) for part, where in strata(series, day).items()}
            rows.append({"week": series.days[day], "model": name, **metrics(labels, scores), "strata": parts})
    return rows
