"""Rolling-forward evaluation: for each week, models learn from what was known on its
Monday, and predict it.

A training row is a dataset on an earlier day, with features of the days before that day
and the label of the weeks from that day on, which are over on the Monday.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.popularity.fitting import (
    SHUFFLED,
    keep_raw_forecast,
    past_days,
    predict,
    raw_forecast,
)
from cmsspark.apps.popularity.guards import check_guards, shuffles
from cmsspark.apps.popularity.models import check_model
from cmsspark.apps.popularity.scores import metrics
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.terminal import pluralize
from cmsspark.engines.parallel_tasks import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Models of pyspark.ml train by jobs of their own: a task cannot start one.
_OWN_JOBS: Final = "spark-"


def strata(series: Series, day: int) -> Mapping[str, Array]:
    """Return bool [datasets] each: active (used in the last week), dormant (used
    before), new (never used before).
    """
    used = series.accesses[:day] > 0
    active, ever = np.asarray(used[max(day - 7, 0) :].any(0)), np.asarray(used.any(0))
    return {"active": active, "dormant": ever & ~active, "new": ~ever}


@dataclass(frozen=True)
class WeekForecast:
    """What a model predicted for the weeks from day number ``day`` on: calibrated
    float64 [datasets], NaN for datasets that had not entered before that day.
    """

    day: int
    model: str
    scores: Array


def evaluated_days(series: Series, label: Label, last: int | None = None) -> list[int]:
    """Return numbers of the Mondays that can be predicted and judged: those that a model
    forecasts, or, if there are none, those of persistence. ``last``: the last so many
    only.

    Raises InputMissing (66) if there is none, DataError (65) if the series lacks what
    the label is made of.
    """
    label.check(series)
    mondays = [day for day in series.mondays(label.weeks) if day >= FIRST_DAY]
    if not mondays:
        raise too_short(series, "no week can be predicted", FIRST_DAY, label)
    of_models = [day for day in mondays if day >= label.model_days]
    return (of_models or mondays)[-last if last else 0 :]


def too_short(
    series: Series, problem: str, earliest: int, label: Label, mondays: int = 1
) -> InputMissing:
    """Return the error where a series has not ``mondays`` weeks that begin on a Monday
    ``earliest`` days after its first day or later, and are over: it says how many days
    are needed from that first day on.
    """
    start = series.days[0] + timedelta(days=earliest)
    monday = start + timedelta(days=-start.weekday() % 7 + 7 * (mondays - 1))
    last = monday + timedelta(days=label.days - 1)
    return InputMissing(
        problem,
        found=f"{pluralize(len(series.days), 'day')}, {series.days[0]} to {series.days[-1]}",
        next_step=f"give {(last - series.days[0]).days + 1:,} days, to {last}, or begin earlier: "
        f"{label.rule(series)}",
    )


def forecasts(
    weeks: Weeks,
    days: Sequence[int],
    models: Sequence[str],
    *,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> list[WeekForecast]:
    """Return the forecast of each day by persistence and, once it has enough days before
    it, by each model, in order of days, after the guards; with ``spark`` one task a
    forecast.

    Raises DataError (65) where a guard fails, UsageError (2) for an unknown model.
    """
    names = list(dict.fromkeys(models))
    for name in names:
        check_model(name)
    if spark is not None:
        past = sorted(
            {*days, *(past_day for day in days for past_day in past_days(day, weeks.label))}
        )
        learned = [day for day in days if day >= weeks.label.model_days]
        tasks = [(day, SHUFFLED, shuffle) for day, shuffle in shuffles(seed, learned)]
        tasks += [
            (day, name, seed)
            for day in (past if learned else ())
            for name in names
            if not name.startswith(_OWN_JOBS)
        ]
        rows = map_tasks(_forecast, (weeks.series, weeks.label), tasks, spark)
        for task, row in zip(tasks, rows, strict=True):
            keep_raw_forecast(weeks, *task, np.array(row["scores"], float))
    check_guards(weeks, days, seed=seed)
    label, series = weeks.label, weeks.series
    return [
        WeekForecast(day, name, predict(weeks, day, name, seed=seed))
        for day in days
        for name in dict.fromkeys(label.model_on(series, day, model) for model in names)
    ]


def _forecast(shared: tuple[Series, Label], task: tuple[int, str, int]) -> dict[str, Any]:
    series, label = shared
    day, model, seed = task
    # The days from the week on are cut off: nothing of them can be known.
    weeks = Weeks(series.until(day), label)
    # A dataset that had not entered has none: JSON knows no NaN.
    scores = raw_forecast(weeks, day, model, seed=seed).tolist()
    return {"scores": [None if score != score else score for score in scores]}


def judge(weeks: Weeks, forecast: WeekForecast) -> dict[str, Any]:
    """Return a row: the week's first day, the model, :func:`metrics` of datasets that
    had entered, and strata.
    """
    series, entered = weeks.series, ~np.isnan(forecast.scores)
    labels, scores = weeks.label.mark(series, forecast.day)[entered], forecast.scores[entered]
    parts = {
        part: metrics(labels[where[entered]], scores[where[entered]])
        for part, where in strata(series, forecast.day).items()
    }
    return {
        "week": series.days[forecast.day],
        "model": forecast.model,
        **metrics(labels, scores),
        "strata": parts,
    }


def forecast_and_judge(
    weeks: Weeks,
    models: Sequence[str],
    *,
    last: int | None = None,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> tuple[list[WeekForecast], list[dict[str, Any]]]:
    """Return the forecasts of each week and model, and a row for each: :func:`judge`.

    ``last``: the last so many weeks only. Raises InputMissing (66) where no week can be
    predicted, DataError (65) where a guard fails, UsageError (2) for an unknown model.
    """
    days = evaluated_days(weeks.series, weeks.label, last)
    judged = forecasts(weeks, days, models, seed=seed, spark=spark)
    return judged, [judge(weeks, forecast) for forecast in judged]
