"""Fit models on all that is known on a day, calibrate them on past forecasts, and judge
them rolling forward: for each week, models learn from what was known on its Monday.

A training row is a dataset on an earlier day, with features of the days before that day
and the label of the weeks from that day on, which are over on the Monday.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cmsspark.apps.popularity.models import (
    Model,
    check_model,
    logistic_weights,
    make_model,
    sigmoid,
)
from cmsspark.apps.popularity.scores import metrics
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, PERSISTENCE, Label, Training, Weeks
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.text.terminal import pluralize
from cmsspark.engines.worker_pool import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Past weeks, predicted and over, that a calibration is fitted on.
CALIBRATION_WEEKS: Final = 5
#: The weight, in rows, of a calibration that changes nothing.
_NEAR_ONE: Final = 10.0
#: Calibrations have slopes of their own beyond these logarithms of the odds (.12, .88).
_ENDS: Final = 2.0
#: The least slope: whatever the weeks were like, a higher probability stays the higher one.
_LEAST_SLOPE: Final = 0.2
#: How far weeks differ, as the variance of their logarithms of the odds, before there
#: are several of them. It counts as two weeks.
_WEEKS_DIFFER: Final = 0.25
#: Squared misses of the mean forecast, and of the share of the week before, before any
#: week was seen.
_MISSES_BEFORE: Final = (0.02, 0.1)
#: Probabilities nearer to 0 and 1 are calibrated as these.
_LEAST: Final = 1e-6


class Fitted(msgspec.Struct, frozen=True):
    """A model that has learned. ``calibration``: as of :func:`calibration`; None where
    it has none.
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
    model, training = _fit_raw(before, day, model_name, seed)
    raw = of_population(before, day, model.predict)
    weights = _find_calibration(before, day, model_name, seed, raw)
    return Fitted(model_name, model, weights, training)


def _fit_raw(before: Weeks, day: int, model_name: str, seed: int) -> tuple[Model, Training]:
    training = before.training(day, seed=seed, may_be_empty=model_name == PERSISTENCE)
    model = make_model(model_name, before.label)
    model.fit(training, seed)
    return model, training


def past_days(day: int, label: Label) -> list[int]:
    """Return the days, the latest first, whose weeks are over on ``day`` and which a
    calibration looks at.
    """
    days = (day - label.days - 7 * back for back in range(CALIBRATION_WEEKS))
    return [past_day for past_day in days if past_day >= FIRST_DAY + label.days]


def _find_calibration(
    before: Weeks, day: int, model_name: str, seed: int, raw: Array
) -> Array | None:
    """Return the calibration of ``raw`` by the forecasts of the last weeks that are over
    on ``day``, each from what was known before it; None without one.
    """
    past, earlier_shares = [], []
    for past_day in () if model_name == PERSISTENCE else past_days(day, before.label):
        forecast = raw_forecast(before, past_day, model_name, seed=seed)
        entered = ~np.isnan(forecast)
        past.append((forecast[entered], before.label.mark(before.series, past_day)[entered]))
        earlier_shares.append(_newest_share(before, past_day))
    if not past:
        return None
    newest = _newest_share(before, day)
    return with_newest_share(calibration(past), past, earlier_shares, raw, newest)


def _newest_share(before: Weeks, day: int) -> float:
    """Return the share of popular datasets in the last weeks that are over on ``day``."""
    first = day - before.label.days
    return _share(before.label.mark(before.series, first)[before.population(first)])


def _share(values: Array) -> float:
    """Return the mean, never 0 or 1."""
    return float((values.sum() + 0.5) / (len(values) + 1))


def raw_forecast(weeks: Weeks, day: int, model_name: str, *, seed: int = 0) -> Array:
    """Return a model's own probabilities for the weeks from that day on, float64
    [datasets]; NaN for datasets that had not entered. Each is made once.
    """
    key = (day, model_name, seed)
    if key not in weeks.shared.raw:
        before = weeks.until(day)
        model, _ = _fit_raw(before, day, model_name, seed)
        weeks.shared.raw[key] = of_population(before, day, model.predict)
    return weeks.shared.raw[key]


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
    return calibrated(raw, _find_calibration(before, day, model_name, seed, raw))


def calibration(past: Sequence[tuple[Array, Array]]) -> Array:
    """Return what corrects predictions, fitted on (predictions, labels) of past weeks:
    slopes on the logit scale below, between and above :data:`_ENDS`, and a shift.

    Slopes are common to the weeks. Each week has a shift of its own, as use as a whole
    goes up and down: their mean counts as far as it is larger than by chance.
    """
    of_week = np.concatenate([np.full(len(raw), week) for week, (raw, _) in enumerate(past)])
    raw, labels = (np.concatenate(columns) for columns in zip(*past, strict=True))
    rows = np.concatenate([_pieces(raw), of_week[:, None] == np.arange(len(past))], axis=1)
    start = np.zeros(rows.shape[1])
    start[:3] = 1
    penalty = np.append(np.full(3, _NEAR_ONE), np.full(len(past), 0.01))
    weights = logistic_weights(rows.astype(float), labels, penalty, start)
    slopes, shifts = np.maximum(weights[:3], _LEAST_SLOPE), weights[3:]
    spread = float(((shifts - shifts.mean()) ** 2).sum() + 2 * _WEEKS_DIFFER) / (len(past) + 1)
    by_chance = 2 * spread / len(past) / max(float(shifts.mean()) ** 2, 1e-12)
    return np.append(slopes, shifts.mean() * max(1 - by_chance, 0.0))


def with_newest_share(
    weights: Array,
    past: Sequence[tuple[Array, Array]],
    earlier_shares: Sequence[float],
    raw: Array,
    newest: float,
) -> Array:
    """Return the calibration of ``raw`` shifted so that its mean is between the mean
    forecast and ``newest``, the share of popular datasets in the newest week.

    Of both counts more what was nearer, in the past weeks, to the share that they had;
    ``earlier_shares`` are those of the weeks before them.
    """
    misses = np.array(_MISSES_BEFORE)
    for (forecast, labels), earlier in zip(past, earlier_shares, strict=True):
        guesses = _odds([_share(calibrated(forecast, weights)), earlier])
        misses += (guesses - _odds(_share(labels))) ** 2
    of_newest = misses[0] ** 3 / (misses**3).sum()
    entered = calibrated(raw[~np.isnan(raw)], weights)
    aim = (1 - of_newest) * _odds(_share(entered)) + of_newest * _odds(newest)
    # By halves, as the mean rises with the shift.
    low, high = -10.0, 10.0
    for _ in range(40):
        shift = (low + high) / 2
        is_below = _odds(_share(sigmoid(_odds(entered) + shift))) < aim
        low, high = (shift, high) if is_below else (low, shift)
    return np.append(weights[:3], weights[3] + low)


def calibrated(raw: Array, weights: Array | None) -> Array:
    """Return probabilities after the calibration, in the same order."""
    return raw if weights is None else sigmoid(_pieces(raw) @ weights[:3] + weights[3])


def _pieces(probability: Array) -> Array:
    """Return the logarithm of the odds as the sum of three columns: its part below, between
    and above :data:`_ENDS`.
    """
    odds = _odds(probability)
    between = np.clip(odds, -_ENDS, _ENDS)
    return np.stack([np.minimum(odds + _ENDS, 0), between, np.maximum(odds - _ENDS, 0)], axis=1)


def _odds(probability: Array | Sequence[float] | float) -> Array:
    """Return the logarithm of the odds."""
    clipped = np.clip(probability, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(clipped / (1 - clipped)))


def check_later_days(weeks: Weeks, days: Sequence[int]) -> None:
    """Check that no feature knows the week that it predicts: features of a day are
    bit-identical when all later days are deleted, and with them the datasets that had
    not entered; and the population of a day has none of these. Raises DataError (65).
    """
    for day in days:
        before = weeks.until(day)
        series, population = before.series, before.population(day)
        # Each dataset of the population has a row, or a creation in DBS, before that
        # day, and none with a row is left out.
        is_late = population & ~(series.created_days(day) < day) & ~series.is_known
        is_lost = series.is_known & ~population
        if is_late.any() or is_lost.any():
            name = series.datasets[int(np.nonzero(is_late | is_lost)[0][0])]
            raise DataError(
                f"the population of {weeks.series.days[day]} changes when later days are deleted",
                found=f"{is_late.sum():,} datasets that only later days have, {is_lost.sum():,} missing ones, such as {name}",
                next_step="a dataset enters with its first row or its creation in DBS: correct Series.population",
            )
        entered = np.nonzero(population)[0]
        # Other tiers and campaigns may be common among the datasets of fewer days.
        every, recomputed = _shared(weeks, Weeks(series, weeks.label), day)
        is_changed = not np.array_equal(every, recomputed)
        every, fewer = _shared(weeks, Weeks(series.only(entered), weeks.label), day)
        # The order of a sum depends on the shape of what is summed.
        if is_changed or not np.allclose(every[entered], fewer, rtol=1e-12, atol=1e-12):
            raise DataError(
                f"features of {weeks.series.days[day]} change when later days are deleted",
                found="later days" if is_changed else "datasets that only later days have",
                next_step="correct the columns: cmsspark popularity columns",
            )


def _shared(weeks: Weeks, recomputed: Weeks, day: int) -> tuple[Array, Array]:
    """Return the rows of both on a day, in the columns that both have: all but flags."""
    shared = [name for name in weeks.columns if name in recomputed.columns]
    rows, rows_of_others = (
        part.rows(day)[:, [part.columns.index(name) for name in shared]]
        for part in (weeks, recomputed)
    )
    return rows, rows_of_others


def strata(series: Series, day: int) -> Mapping[str, Array]:
    """Return bool [datasets] each: active (used in the last week), dormant (used
    before), new (never used before).
    """
    used = series.accesses[:day] > 0
    active, ever = np.asarray(used[max(day - 7, 0) :].any(0)), np.asarray(used.any(0))
    return {"active": active, "dormant": ever & ~active, "new": ~ever}


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
        f"{label.rule(series.days[0])}",
    )


def judge(
    weeks: Weeks,
    days: Sequence[int],
    models: Sequence[str],
    *,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return a row for the forecast of each day by persistence and, once it has enough
    days before it, by each model, in order of days: the week's first day, the model,
    :func:`metrics` of datasets that had entered, and strata. With ``spark`` each forecast
    is a task.

    Raises DataError (65) where a feature knows its week, UsageError (2) for an unknown
    model.
    """
    names = list(dict.fromkeys(models))
    for name in names:
        check_model(name)
    label, series = weeks.label, weeks.series
    check_later_days(weeks, days)
    if spark is not None:
        past = {past_day for day in days for past_day in past_days(day, label)}
        has_learned = any(day >= label.model_days for day in days)
        of_tasks = sorted({*days, *past}) if has_learned else ()
        tasks = [(day, name, seed) for day in of_tasks for name in names]
        scores_of_tasks = map_tasks(_forecast, (series, label), tasks, spark)
        for task, row in zip(tasks, scores_of_tasks, strict=True):
            weeks.shared.raw[task] = np.array(row["scores"], float)
    rows = []
    for day in days:
        parts = strata(series, day)
        for name in dict.fromkeys(label.model_on(series, day, model) for model in names):
            scores = predict(weeks, day, name, seed=seed)
            entered, labels = ~np.isnan(scores), label.mark(series, day)
            of_strata = {
                part: metrics(labels[entered & where], scores[entered & where])
                for part, where in parts.items()
            }
            of_all = metrics(labels[entered], scores[entered])
            rows.append({"week": series.days[day], "model": name, **of_all, "strata": of_strata})
    return rows


def _forecast(shared: tuple[Series, Label], task: tuple[int, str, int]) -> dict[str, Any]:
    series, label = shared
    day, model, seed = task
    # The days from the week on are cut off: nothing of them can be known.
    scores = raw_forecast(Weeks(series.until(day), label), day, model, seed=seed).tolist()
    # A dataset that had not entered has none: JSON knows no NaN.
    return {"scores": [None if score != score else score for score in scores]}


def judge_last(
    weeks: Weeks,
    models: Sequence[str],
    *,
    last: int | None = None,
    seed: int = 0,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of :func:`judge` for the Mondays that can be judged; ``last``: the
    last so many only.

    Raises InputMissing (66) where no week can be predicted, and as :func:`judge`.
    """
    days = evaluated_days(weeks.series, weeks.label, last)
    return judge(weeks, days, models, seed=seed, spark=spark)
