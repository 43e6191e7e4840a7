"""Daily use of datasets: from a file of anybody's, or from stored days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.errors import DataError, InputMissing, UsageError
from cmsspark.pipeline.stored_days import StoredDays
from cmsspark.sources.registry import ACCESS_STREAMS

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]

#: Measures of a day and dataset; ``accesses`` is needed, others are 0 where a series has none.
MEASURES: Final = ("accesses", "users", "bytes", "cpus")
_NEEDED: Final = ("day", "dataset", "accesses")


@dataclass(frozen=True)
class Series:
    """``values``: float64 [measures, days, datasets], 0 where nothing was used. ``days`` are consecutive.

    ``missing``: days without any row; they count as days without use, and reports name them.
    """

    days: tuple[date, ...]
    datasets: tuple[str, ...]
    values: Array
    missing: tuple[date, ...] = ()

    @property
    def accesses(self) -> Array:
        """float64 [days, datasets]."""
        return np.asarray(self.values[0])

    def until(self, count: int) -> Series:
        """The series that ends before day number ``count``."""
        return Series(self.days[:count], self.datasets, self.values[:, :count])

    def only(self, chosen: Array) -> Series:
        """The series of the datasets of these numbers, which ascend."""
        names = tuple(self.datasets[number] for number in chosen.tolist())
        return Series(self.days, names, np.ascontiguousarray(self.values[:, :, chosen]), self.missing)

    def mondays(self, weeks: int = 1) -> list[int]:
        """Numbers of the days on which a week starts whose ``weeks`` weeks are all there."""
        last = len(self.days) - 7 * weeks
        return [number for number, day in enumerate(self.days) if day.weekday() == 0 and number <= last]


def read_series(path: Path) -> Series:
    """The series of a CSV or Parquet file with the columns day, dataset, accesses, and optionally users, bytes, cpus.

    Rows of one day and dataset are added up. Raises InputMissing (66), UsageError (2) for other files, DataError (65)
    for damaged ones, missing columns, nulls and negative numbers.
    """
    import polars as pl

    if not path.is_file():
        raise InputMissing("there is no such series", where=path, next_step="give a CSV or Parquet file")
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise UsageError(f"the kind of {path.name} is not known", next_step="name it .csv or .parquet")
    try:
        table = pl.read_csv(path, try_parse_dates=True) if kind == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        text = str(error).splitlines()[0]
        raise DataError("the series cannot be read", where=path, found=text, next_step="write it again") from None
    return _series_of(table, path)


def _series_of(table: pl.DataFrame, path: Path) -> Series:
    import polars as pl

    lacking = [name for name in _NEEDED if name not in table.columns]
    if lacking:
        raise DataError(
            f"the series has no column {', '.join(lacking)}",
            where=path,
            found=f"columns {', '.join(table.columns)}",
            next_step="name the columns day, dataset and accesses",
        )
    measures = [name for name in MEASURES if name in table.columns]
    try:
        table = table.select(
            pl.col("day").cast(pl.Date),
            pl.col("dataset").cast(pl.String),
            *(pl.col(name).cast(pl.Float64) for name in measures),
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            "the series has days that are no dates, or numbers that are none",
            where=path,
            found=str(error).splitlines()[0],
            next_step="day: 2026-01-15; accesses, users, bytes, cpus: numbers",
        ) from None
    bad = table.filter(
        pl.any_horizontal(pl.col(name).is_null() for name in _NEEDED)
        | pl.any_horizontal((pl.col(name) < 0) | pl.col(name).is_nan() for name in measures)
    )
    if len(bad) or table.is_empty():
        found = f"{len(bad)} rows, the first: {bad.row(0)}" if len(bad) else "no rows"
        raise DataError("the series has nulls or negative numbers", where=path, found=found, next_step="remove them")
    return make_series(table.group_by("day", "dataset").sum())


def make_series(table: pl.DataFrame) -> Series:
    """A series of rows (day, dataset, measures); one row for each day and dataset."""
    first, last = table["day"].min(), table["day"].max()
    assert isinstance(first, date) and isinstance(last, date)
    days = tuple(first + timedelta(days=number) for number in range((last - first).days + 1))
    names = np.asarray(table["dataset"].to_numpy(), str)
    datasets, column = np.unique(names, return_inverse=True)
    row = (table["day"].to_numpy().astype("datetime64[D]") - np.datetime64(first)).astype(int)
    values = np.zeros((len(MEASURES), len(days), len(datasets)))
    for number, name in enumerate(MEASURES):
        if name in table.columns:
            values[number, row, column] = table[name].fill_null(0).to_numpy()
    present = set(row.tolist())
    missing = tuple(day for number, day in enumerate(days) if number not in present)
    return Series(days, tuple(datasets.tolist()), values, missing)


def stored_series(stored: StoredDays) -> Series:
    """The series of stored days: accesses, distinct users, bytes and CPU seconds of each dataset over all streams
    of accesses. Jobs are another measure, and are not among them.

    Raises DataError (65) where a day's partials are damaged or two keys of pseudonyms are mixed.
    """
    import polars as pl

    stored.key_id()
    frames = []
    for batch in stored.batches(["stream", "dataset_name", "user", "nacc", "read_bytes", "cpu_time"]):
        for day, rows in batch:
            frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(pl.col("stream", "dataset_name").cast(pl.String))
            frame = frame.filter(pl.col("stream").is_in(ACCESS_STREAMS))
            frames.append(
                frame.group_by(dataset=pl.col("dataset_name")).agg(
                    day=pl.lit(day),
                    accesses=pl.col("nacc").sum().cast(pl.Float64),
                    users=pl.col("user").drop_nulls().n_unique().cast(pl.Float64),
                    bytes=pl.col("read_bytes").cast(pl.Float64).sum(),
                    cpus=pl.col("cpu_time").cast(pl.Float64).sum(),
                )
            )
    table = pl.concat(frames)
    if table.is_empty():
        raise InputMissing("the stored days have no accesses", next_step="choose other days")
    return make_series(table)
