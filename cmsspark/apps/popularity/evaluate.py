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

from cmsspark.apps.popularity.features import decayed
from cmsspark.apps.popularity.fitting import (
    SHUFFLED,
    keep_raw_forecast,
    past_days,
    predict,
    raw_forecast,
)
from cmsspark.apps.popularity.models import check_model
from cmsspark.apps.popularity.scores import average_precision, metrics
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.text.terminal import pluralize
from cmsspark.engines.worker_pool import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Checks that no feature knows the week that it predicts; each evaluation runs them.

#: A leak tells the order of the week better than the best column of the past by this
#: rank correlation, or has this one with what the columns of the past leave open; more
#: where the rows are few. Honest columns had up to 0.04 and 0.36 in the weeks of
#: synthetic worlds, 0.02 and 0.58 in those of the real series, leaks from 0.7 on in the
#: second.
_ALONE: Final = 0.1
_BESIDE: Final = 0.55
#: Datasets of a day that columns are checked on at most.
_MOST_ROWS: Final = 5_000
#: Fewer rows say nothing about a column.
_LEAST_ROWS: Final = 20
#: Weeks before the checked ones that few rows are checked together with, at most.
_MORE_WEEKS: Final = 8
#: What a leak in few rows adds at least to the rank correlation of the best column of the past.
_LEAST_GAIN: Final = 0.02
#: Average precision of shuffled labels may lie this far above the share of positives.
_SHUFFLED_ROOM: Final = 0.15
#: Shuffles of each day at least, and of all days together: three alone may all find the
#: same direction by chance.
_SHUFFLES: Final = 3
_ALL_SHUFFLES: Final = 12


def check_guards(weeks: Weeks, days: Sequence[int], *, seed: int = 0) -> None:
    """Check in three ways that no feature knows the week that it predicts. Raises DataError (65).

    Features and population of a day are the same when all later days are deleted; no
    column tells more of the predicted week than the past can; a model of shuffled
    labels has the precision of guessing.
    """
    check_later_days(weeks, days)
    check_columns(weeks, days)
    shuffled = [
        (day, predict(weeks, day, SHUFFLED, seed=shuffle))
        for day, shuffle in shuffles(seed, [day for day in days if day >= weeks.label.model_days])
    ]
    check_shuffled(weeks, shuffled)


def check_later_days(weeks: Weeks, days: Sequence[int]) -> None:
    """Check that features of a day are bit-identical when all later days are deleted,
    and with them the datasets that had not entered, and that the population of a day
    has none of these. Raises DataError (65).
    """
    for day in days:
        _check_population(weeks, day)
        before = weeks.until(day)
        series, entered = before.series, np.nonzero(before.population(day))[0]
        # Other tiers and campaigns may be common among the datasets of fewer days.
        every, recomputed = _shared(weeks, Weeks(series, weeks.label), day)
        if not np.array_equal(every, recomputed):
            raise DataError(
                f"features of {weeks.series.days[day]} change when later days are deleted"
            )
        every, fewer = _shared(weeks, Weeks(series.only(entered), weeks.label), day)
        # The order of a sum depends on the shape of what is summed.
        if not np.allclose(every[entered], fewer, rtol=1e-12, atol=1e-12):
            actual = "datasets that only later days have change features of others"
            raise DataError(
                f"features of {weeks.series.days[day]} change when later days are deleted",
                found=actual,
            )


def _check_population(weeks: Weeks, day: int) -> None:
    """Check that each dataset of the population has a row, or a creation in DBS, before
    that day, and that none with a row is left out. Raises DataError (65).
    """
    before = weeks.until(day)
    population, may_enter = before.population(day), before.series.is_known
    late, lost = (
        population & ~(before.series.created_days(day) < day) & ~may_enter,
        may_enter & ~population,
    )
    if late.any() or lost.any():
        name = before.series.datasets[int(np.nonzero(late | lost)[0][0])]
        raise DataError(
            f"the population of {weeks.series.days[day]} changes when later days are deleted",
            found=f"{late.sum():,} datasets that only later days have, {lost.sum():,} missing ones, such as {name}",
            next_step="a dataset enters with its first row or its creation in DBS: correct Series.population",
        )


def _shared(weeks: Weeks, recomputed: Weeks, day: int) -> tuple[Array, Array]:
    """Return the rows of both on a day, in the columns that both have: all but flags."""
    shared = [name for name in weeks.columns if name in recomputed.columns]
    rows, rows_of_others = (
        part.rows(day)[:, [part.columns.index(name) for name in shared]]
        for part in (weeks, recomputed)
    )
    return rows, rows_of_others


def shuffles(seed: int, days: Sequence[int]) -> list[tuple[int, int]]:
    """Return (day, seed) of each shuffle of the labels: three of each day, more where
    there are few days.
    """
    count = max(_SHUFFLES, -(-_ALL_SHUFFLES // max(len(days), 1)))
    return [(day, seed + _SHUFFLES * day + number) for day in days for number in range(count)]


def check_shuffled(weeks: Weeks, scores: Sequence[tuple[int, Array]]) -> None:
    """Check that a model of shuffled labels has the average precision of guessing. ``scores``:
    (day, what such a model predicted for it). Raises DataError (65).

    Such a model ranks by some direction of the features. Where few datasets are
    popular, one direction is much better than guessing by chance, and the next one
    worse; what knows the week is better each time.
    """
    excess = []
    for day, predicted in scores:
        entered = ~np.isnan(predicted)
        labels = weeks.label.mark(weeks.series, day)[entered]
        precision = average_precision(labels, predicted[entered])
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
    """Check by ablation that no column knows the predicted week. Raises DataError (65).

    Alone, and beside columns that come from the past for certain, each column may tell
    the order of the datasets by their accesses in the week only as well as such columns
    do: the same week's CPU, users, bytes, or a noisy copy of its accesses tell much
    more. Few rows are checked once more together with those of the weeks before.
    """
    rows = [_ranked(weeks, day) for day in days]
    count = sum(len(week) for week, _, _ in rows)
    if count < _LEAST_ROWS or not any(week.any() for week, _, _ in rows):
        return
    is_few = count <= 2 * rows[0][1].shape[1]
    _check_rows(weeks.columns, rows, is_few=is_few)
    if is_few:
        earlier = range(min(days) - 7, FIRST_DAY - 1, -7)[:_MORE_WEEKS]
        _check_rows(weeks.columns, [*rows, *(_ranked(weeks, day) for day in earlier)], is_few=True)


def _check_rows(
    names: Sequence[str], rows: Sequence[tuple[Array, Array, Array]], *, is_few: bool
) -> None:
    """Check rows of some days (:func:`_ranked`) together. Raises DataError (65).

    Of few rows the columns of the past leave so little open that an honest column may
    fit it by chance: a leak fits it and also closes half of what the best column of the
    past lacks to the order of the week.
    """
    week, past, suspects = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    best = float(np.abs(past.T @ week).max()) / len(week)
    basis = _basis_of_few(past) if is_few else _basis(past)
    residual = week - basis @ (basis.T @ week)
    spread = len(week) ** -0.5
    spread_beside = (len(week) - basis.shape[1]) ** -0.5 if is_few else spread
    least = best + max((1 - best) / 2, _LEAST_GAIN) if is_few else 0.0
    for number, name in enumerate(names):
        alone = abs(float(suspects[:, number] @ week)) / len(week)
        added = suspects[:, number] - basis @ (basis.T @ suspects[:, number])
        size = float(np.sqrt((added @ added) * (residual @ residual)))
        correlation = abs(float(added @ residual) / size if size > 1e-6 * len(added) else 0.0)
        if alone > best + _ALONE + spread or (
            correlation > _BESIDE + 1.5 * spread_beside and alone >= least
        ):
            raise DataError(
                f"the feature {name} knows the week that is predicted",
                found=f"rank correlation {alone:.3f} with its accesses, {best:.3f} by the best column of the past; "
                f"{correlation:.3f} with what these leave open",
                next_step="leave the column out",
            )


def _ranked(weeks: Weeks, day: int) -> tuple[Array, Array, Array]:
    """Return the ranks of the accesses of the week, of columns of the past and of all
    features on that day, of at most
    :data:`_MOST_ROWS` datasets.
    """
    entered = np.nonzero(weeks.until(day).population(day))[0]
    if len(entered) > _MOST_ROWS:
        entered = np.sort(np.random.default_rng(day).choice(entered, _MOST_ROWS, replace=False))
    past = np.apply_along_axis(_ranks, 0, _past_columns(weeks.series.until(day))[entered])
    features = np.apply_along_axis(_ranks, 0, weeks.rows(day)[entered])
    return (
        _ranks(weeks.series.accesses[day : day + weeks.label.days, entered].sum(0)),
        past,
        features,
    )


def _past_columns(past: Series) -> Array:
    """Return float64 [datasets, columns] that can know nothing of the week after
    ``past``, those of accesses first.
    """
    length, used = len(past.days), past.accesses > 0
    columns = [np.where(used.any(0), np.argmax(used[::-1], 0), length)]
    for values in past.values:
        columns += [values[max(length - days, 0) :].sum(0) for days in (1, 3, 7, 14, 28)]
        columns.append(decayed(values))
    return np.stack(columns, axis=1)


def _basis(past: Array) -> Array:
    """Return orthonormal columns that span a constant and the columns of the past."""
    basis, _ = np.linalg.qr(np.append(past, np.ones((len(past), 1)), axis=1))
    return np.asarray(basis)


def _basis_of_few(past: Array) -> Array:
    """Return the same of few rows, without the last columns of the past and those that
    depend on others: in as many dimensions as there are rows they would explain every
    week.
    """
    columns = np.append(np.ones((len(past), 1)), past[:, : len(past) // 3 - 1], axis=1)
    vectors, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(vectors[:, sizes > 1e-9 * sizes[0]])


def _ranks(values: Array) -> Array:
    """Return the ranks with mean 0 and variance 1, equal values with one rank; 0 where
    all are equal.
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return np.asarray((ranks - ranks.mean()) / (ranks.std() or 1.0))


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
