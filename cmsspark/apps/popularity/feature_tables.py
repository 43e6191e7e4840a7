"""Features as tables, one row for each dataset and week: for a file, and for the store."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

import polars as pl

from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS, Names, features
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import FIRST_DAY, Label
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import DERIVED
from cmsspark.base.periods import start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize

TABLE: Final = "popularity_features"


def file_rows(series: Series, number: int, label: Label, last: int = 0) -> pl.DataFrame:
    """Return all features of each dataset on day ``number``, and on the days 7, 14 …
    before it, ``last`` of them: columns ``first_day``, ``dataset``, the features, and ``is_popular``, null where the weeks from that
    day on are not over.

    Days without a day before them are left out. Raises DataError (65) where the series
    lacks what the label is made of.
    """
    if last:
        label.check(series)
    # Datasets that only later days have make no tier or campaign common.
    names = Names(series.datasets, series.until(number).is_known)
    frames = []
    for start in sorted(start for start in range(number, number - 7 * last - 1, -7) if start > 0):
        columns, rows = features(series.until(start), names)
        first = series.days[0] + timedelta(days=start)
        entered = series.until(number).population(start)
        frames.append(
            pl.DataFrame(
                {
                    "first_day": [first] * len(rows),
                    "dataset": series.datasets,
                    **{name: rows[:, index] for index, name in enumerate(columns)},
                    "is_popular": _labels(series, start, label),
                },
                schema_overrides={"dataset": pl.String, "is_popular": pl.Boolean},
            ).filter(pl.Series(entered))
        )
    return pl.concat(frames)


def _labels(series: Series, start: int, label: Label) -> list[bool | None]:
    """Return whether each dataset was popular in the weeks from that day on; nulls
    where they are not over.
    """
    if start + label.days > len(series.days):
        return [None] * len(series.datasets)
    popular: list[bool | None] = (label.mark(series, start) > 0).tolist()
    return popular


def week_rows(series: Series, day: date, label: Label, last: int | None = None) -> pl.DataFrame:
    """``schemas/tables/popularity_features.yaml``: the weeks that begin on ``day`` and 7, 14 … days
    before it, each with at least a week of days before it; ``last``: that of ``day``
    and so many before it.

    Raises InputMissing (66) where there is none, DataError (65) where the series lacks
    what the label is made of.
    """
    label.check(series)
    end = (day - series.days[0]).days
    starts = list(range(end, FIRST_DAY - 1, -7))[: last + 1 if last else None]
    if not starts:
        raise InputMissing(
            "no week has a week of days before it",
            found=f"{pluralize(max(end, 0), 'day')} before {day}",
            next_step=f"store at least the {FIRST_DAY} days before it",
        )
    names = Names(series.datasets)
    rules = DERIVED["data_tier"], DERIVED["campaign"]
    tiers, campaigns = ([rule.derive(name) for name in series.datasets] for rule in rules)
    schema = pl.Schema(stored_table(TABLE).arrow())
    frames = []
    for start in sorted(starts):
        columns, rows = features(series.until(start), names)
        first = series.days[0] + timedelta(days=start)
        features_of_week = {name: rows[:, index] for index, name in enumerate(columns)}
        # Tables that the store has not are null.
        unknown = [None] * len(tiers)
        values = {
            "day": [day] * len(tiers),
            "first_day": [first] * len(tiers),
            "dataset_name": series.datasets,
            "data_tier": tiers,
            "campaign": campaigns,
            **{
                name: features_of_week.get(name, unknown)
                for name in (*BASE_COLUMNS, *STORE_COLUMNS)
            },
            "is_popular": _labels(series, start, label),
            "timestamp": [start_ms(day)] * len(tiers),
        }
        rows_of_week = pl.DataFrame({name: values[name] for name in schema}, schema=schema)
        frames.append(rows_of_week.filter(pl.Series(series.population(start))))
    return pl.concat(frames)
