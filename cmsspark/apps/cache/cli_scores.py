"""Scores of ``cmsspark cache --scores forecast``: how probably each object is requested in the coming week."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

if TYPE_CHECKING:
    from cmsspark.apps.cache.trace import Trace

_MODEL: Final = "blend"
_EPOCH: Final = date(1970, 1, 1)


def forecast_scores(trace: Trace) -> Array:
    """Return float64 [days, objects]: the probability of a request in the week from each seventh day on, by the model
    of ``cmsspark popularity``, from the days before that day; NaN for objects without a request before it, and on days
    before which there are too few to learn from.

    Raises DataError (65) where the trace has too few days, or too many objects.
    """
    from cmsspark.apps.cache.forecast import number_days
    from cmsspark.apps.popularity.fitting import raw_forecast
    from cmsspark.apps.popularity.series import MEASURES, Series
    from cmsspark.apps.popularity.training import FIRST_DAY, Label, Weeks

    periods, count = number_days(trace.times_ms), len(trace.sizes)
    day_count = int(periods[-1]) + 1
    label = Label(0)
    first_learned = FIRST_DAY + label.days
    if trace.names is None or day_count * count > _MOST_CELLS or day_count <= first_learned:
        raise DataError(
            "the forecast needs more days, or fewer objects",
            found=f"{day_count:,} days, {count:,} objects",
            next_step=f"give a trace of more than {first_learned} days, --sample 0.1, or leave out --scores forecast",
        )
    values = np.zeros((len(MEASURES), day_count, count))
    np.add.at(values[0], (periods, trace.objects), 1)
    start = _EPOCH + timedelta(days=int(trace.times_ms[0] // 86_400_000))
    names = np.array([str(name) for name in trace.names.to_pylist()], object)
    order = np.argsort(names)
    days = tuple(start + timedelta(days=number) for number in range(day_count))
    series = Series(days, tuple(names[order].tolist()), np.ascontiguousarray(values[:, :, order]))
    weeks = Weeks(series, label)
    scores = np.full((day_count, count), np.nan)
    for day in range(first_learned, day_count, 7):
        scores[day : day + 7, order] = raw_forecast(weeks, day, _MODEL)
    return scores


#: Days times objects: four measures of so many take 3 GB.
_MOST_CELLS: Final = 100_000_000
