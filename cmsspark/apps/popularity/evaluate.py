"""Rolling-forward evaluation: for each week, models learn from what was known on its Monday, and predict it.

A training row is a dataset on an earlier day, with features of the days before that day and the label of the weeks
from that day on, which are over on the Monday.

Tuning judges configurations of a model on the earlier weeks only, one task a configuration; the last weeks are held
back and say what the chosen one is worth.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.popularity.fitting import SHUFFLED, keep_raw_forecast, past_days, predict, raw_forecast
from cmsspark.apps.popularity.guards import check_guards, shuffles
from cmsspark.apps.popularity.models import GRIDS, check_model
from cmsspark.apps.popularity.scores import average_precision, mean, metrics
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.text.terminal import pluralize
from cmsspark.engines.parallel_tasks import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Models of pyspark.ml train by jobs of their own: a task cannot start one.
_OWN_JOBS: Final = "spark-"


def strata(series: Series, day: int) -> Mapping[str, Array]:
    """Return bool [datasets] each: active (used in the last week), dormant (used before), new (never used before)."""
    used = series.accesses[:day] > 0
    active, ever = np.asarray(used[max(day - 7, 0) :].any(0)), np.asarray(used.any(0))
    return {"active": active, "dormant": ever & ~active, "new": ~ever}


@dataclass(frozen=True)
class WeekForecast:
    """What a model predicted for the weeks from day number ``day`` on: calibrated float64 [datasets], NaN for datasets
    that had not entered before that day.
    """

    day: int
    model: str
    scores: Array


def evaluated_days(series: Series, label: Label, last: int | None = None) -> list[int]:
    """Return numbers of the Mondays that can be predicted and judged; ``last``: the last so many only.

    Raises InputMissing (66) where there is none, DataError (65) where the series lacks what the label is made of.
    """
    label.check(series)
    mondays = [day for day in series.mondays(label.weeks) if day - label.days >= FIRST_DAY + 7]
    chosen = mondays[-last:] if last else mondays
    if not chosen:
        raise too_short(series, "no week can be predicted", FIRST_DAY + 7 + label.days, label)
    return chosen


def too_short(series: Series, problem: str, earliest: int, label: Label, mondays: int = 1) -> InputMissing:
    """Return the error where a series has not ``mondays`` weeks that begin on a Monday ``earliest`` days after its
    first day or later, and are over: it says how many days are needed from that first day on.
    """
    start = series.days[0] + timedelta(days=earliest)
    monday = start + timedelta(days=-start.weekday() % 7 + 7 * (mondays - 1))
    last = monday + timedelta(days=label.days - 1)
    return InputMissing(
        problem,
        found=f"{pluralize(len(series.days), 'day')}, {series.days[0]} to {series.days[-1]}",
        next_step=f"give {(last - series.days[0]).days + 1:,} days, to {last}, or begin earlier",
    )


def forecasts(
    weeks: Weeks, days: Sequence[int], models: Sequence[str], *, seed: int = 0, spark: SparkSession | None = None
) -> list[WeekForecast]:
    """Return each model's forecast of each day, in order of days, after the guards; with ``spark`` one task a forecast.

    Raises DataError (65) where a guard fails, UsageError (2) for an unknown model.
    """
    names = list(dict.fromkeys(models))
    for name in names:
        check_model(name)
    if spark is not None:
        past = sorted({*days, *(past_day for day in days for past_day in past_days(day, weeks.label))})
        tasks = [(day, SHUFFLED, shuffle) for day, shuffle in shuffles(seed, days)]
        tasks += [(day, name, seed) for day in past for name in names if not name.startswith(_OWN_JOBS)]
        rows = map_tasks(_forecast, (weeks.series, weeks.label), tasks, spark)
        for task, row in zip(tasks, rows, strict=True):
            keep_raw_forecast(weeks, *task, np.array(row["scores"], float))
    check_guards(weeks, days, seed=seed)
    return [WeekForecast(day, name, predict(weeks, day, name, seed=seed)) for day in days for name in names]


def _forecast(shared: tuple[Series, Label], task: tuple[int, str, int]) -> dict[str, Any]:
    series, label = shared
    day, model, seed = task
    # The days from the week on are cut off: nothing of them can be known.
    weeks = Weeks(series.until(day), label)
    # A dataset that had not entered has none: JSON knows no NaN.
    scores = raw_forecast(weeks, day, model, seed=seed).tolist()
    return {"scores": [None if score != score else score for score in scores]}


def judge(weeks: Weeks, forecast: WeekForecast) -> dict[str, Any]:
    """Return a row: the week's first day, the model, :func:`metrics` of datasets that had entered, and strata."""
    series, entered = weeks.series, ~np.isnan(forecast.scores)
    labels, scores = weeks.label.mark(series, forecast.day)[entered], forecast.scores[entered]
    parts = {
        part: metrics(labels[where[entered]], scores[where[entered]])
        for part, where in strata(series, forecast.day).items()
    }
    return {
        "week": series.days[forecast.day], "model": forecast.model, **metrics(labels, scores), "strata": parts,
    }  # fmt: skip


def forecast_and_judge(
    weeks: Weeks, models: Sequence[str], *, last: int | None = None, seed: int = 0, spark: SparkSession | None = None
) -> tuple[list[WeekForecast], list[dict[str, Any]]]:
    """Return the forecasts of each week and model, and a row for each: :func:`judge`.

    ``last``: the last so many weeks only. Raises InputMissing (66) where no week can be predicted, DataError (65) where
    a guard fails, UsageError (2) for an unknown model.
    """
    days = evaluated_days(weeks.series, weeks.label, last)
    judged = forecasts(weeks, days, models, seed=seed, spark=spark)
    return judged, [judge(weeks, forecast) for forecast in judged]


#: Weeks of the end that no configuration is chosen by.
HELD_WEEKS: Final = 1
#: No value of a grid is larger.
_MOST: Final = 1e9


def configurations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def parse_grid(model_name: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the grid of ``NAME=VALUE,VALUE`` texts, or the model's own without any. Raises UsageError (2)."""
    if model_name not in GRIDS:
        raise UsageError(f"{model_name} has nothing to tune", next_step=f"one of {', '.join(GRIDS)}")
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in GRIDS[model_name]:
            names = ", ".join(GRIDS[model_name])
            raise UsageError(f"{text!r} is not NAME=VALUE,VALUE", next_step=f"{model_name} has {names}")
        grid[name] = [_parse_value(text, value, GRIDS[model_name][name]) for value in values.split(",")]
    return grid or {name: list(values) for name, values in GRIDS[model_name].items()}


def _parse_value(text: str, value: str, defaults: Sequence[Any]) -> Any:
    """Return a value of ``text``, a number above 0 of the kind that the default values have: whole ones, or shares."""
    kind, most = type(defaults[0]), 1.0 if max(defaults) < 1 else _MOST
    try:
        number = json.loads(value)
    except ValueError:
        number = None
    if type(number) not in (int, kind) or not 0 < number <= most:
        words = "a whole number" if kind is int else "a number"
        also = "" if most == _MOST else ", at most 1"
        raise UsageError(
            f"{text!r} has a value that is not {words} above 0{also}", found=value or "nothing",
            next_step=f"write them as {', '.join(map(str, defaults))}",
        )  # fmt: skip
    return number


def tune(
    series: Series, label: Label, model_name: str, grid: Mapping[str, Sequence[Any]], *, weeks: int = 4, seed: int = 0,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row for each configuration, the best first: ``options``, ``average_precision`` and ``brier`` as means of
    the ``weeks`` before the held-back one, and ``held_average_precision`` and ``held_brier`` of that one.

    Raises InputMissing (66) where the series has too few weeks.
    """
    mondays = [day for day in series.mondays(label.weeks) if day - label.days >= FIRST_DAY + 7]
    chosen = mondays[-weeks - HELD_WEEKS :]
    if len(chosen) <= HELD_WEEKS:
        earliest = FIRST_DAY + 7 + label.days
        raise too_short(series, "too few weeks to tune on", earliest, label, mondays=HELD_WEEKS + 1)
    pieces = [{"model": model_name, "options": options, "days": chosen} for options in configurations(grid)]
    rows = map_tasks(_judge, (series, label, seed), pieces, spark)
    return sorted(rows, key=lambda row: (-(row["average_precision"] or 0), row["brier"], json.dumps(row["options"])))


def _judge(shared: tuple[Series, Label, int], piece: Mapping[str, Any]) -> dict[str, Any]:
    series, label, seed = shared
    weeks = Weeks(series, label)
    judged = []
    for day in piece["days"]:
        scores = predict(weeks, day, piece["model"], seed=seed, options=piece["options"])
        entered = ~np.isnan(scores)
        labels, scores = label.mark(series, day)[entered], scores[entered]
        judged.append((average_precision(labels, scores), float(((scores - labels) ** 2).mean())))
    tuned, held_back = judged[:-HELD_WEEKS], judged[-HELD_WEEKS:]
    return {
        "model": piece["model"],
        "options": piece["options"],
        "weeks": [series.days[day].isoformat() for day in piece["days"]],
        "average_precision": mean(precision for precision, _ in tuned),
        "brier": mean(brier for _, brier in tuned),
        "held_average_precision": mean(precision for precision, _ in held_back),
        "held_brier": mean(brier for _, brier in held_back),
    }
