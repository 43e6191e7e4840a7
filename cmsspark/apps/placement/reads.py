"""Reads of datasets at sites by day, from a user's file or from stored days."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.sources.registry import ACCESS_STREAMS, STORAGE_APP
from cmsspark.store.stored_days import StoredDays
from cmsspark.store.table_files import read_table

if TYPE_CHECKING:
    import polars as pl

#: Columns of a file: name → other names that are taken for it.
COLUMNS: Final = {
    "day": (),
    "dataset": ("dataset_name",),
    "site": ("site_name",),
    "accesses": ("nacc",),
    "remote": ("remote_nacc",),
    "bytes": ("read_bytes",),
}
_NEEDED: Final = ("day", "dataset", "site", "accesses")
#: Where an access counts whose log names no site.
_NO_SITE: Final = "unknown"
_MEASURES: Final = ("accesses", "can_say", "remote", "bytes")


@dataclass(frozen=True)
class Reads:
    """Columns with an element for each (day, dataset, site): numbers of the day,
    dataset and site; accesses, those of them whose log can say whether they were
    remote, those that were, and bytes read (0 where unknown), float64.

    ``dropped``: accesses that name no site, which no copy can serve.
    """

    days: tuple[date, ...]
    datasets: tuple[str, ...]
    sites: tuple[str, ...]
    day: Array
    dataset: Array
    site: Array
    accesses: Array
    can_say: Array
    remote: Array
    bytes: Array
    dropped: int = 0

    def before(self, day: int) -> Reads:
        """Return the reads of the days before day number ``day``; the names stay."""
        return self._chosen(self.day < day, self.days[:day])

    def week(self, day: int) -> Reads:
        """Return the reads of the seven days from day number ``day`` on."""
        return self._chosen((self.day >= day) & (self.day < day + 7), self.days)

    def _chosen(self, where: Array, days: tuple[date, ...]) -> Reads:
        columns = {
            name: getattr(self, name)[where] for name in ("day", "dataset", "site", *_MEASURES)
        }
        return replace(self, days=days, **columns, dropped=0)

    def mondays(self) -> list[int]:
        """Numbers of the days on which a week starts that is all there."""
        last = len(self.days) - 7
        return [
            number for number, day in enumerate(self.days) if day.weekday() == 0 and number <= last
        ]

    def by_day(self) -> Array:
        """float64 [days, datasets]: accesses at all sites."""
        totals = np.zeros((len(self.days), len(self.datasets)))
        np.add.at(totals, (self.day, self.dataset), self.accesses)
        return totals

    def named(self, datasets: tuple[str, ...], sites: tuple[str, ...]) -> Reads:
        """Return the same reads with the numbers of other lists of names, which hold all of these."""
        dataset = _positions(self.datasets, datasets)[self.dataset]
        site = _positions(self.sites, sites)[self.site]
        return replace(self, datasets=datasets, sites=sites, dataset=dataset, site=site)


def _positions(names: tuple[str, ...], among: tuple[str, ...]) -> Array:
    position = {name: number for number, name in enumerate(among)}
    return np.array([position[name] for name in names], np.int64)


def read_reads(path: Path) -> Reads:
    """Return the reads of a CSV or Parquet file with the columns day, dataset, site,
    accesses, and optionally remote and bytes; rows of one day, dataset and site are
    added up.

    Raises InputMissing (66), UsageError (2) for other files, DataError (65) for damaged
    ones, missing columns, nulls and negative numbers.
    """
    return make_reads(
        read_table(path, "reads", COLUMNS, _NEEDED, numbers=("accesses", "remote", "bytes"))
    )


def make_reads(table: pl.DataFrame, stored: Iterable[date] = ()) -> Reads:
    """Return the reads of rows with :data:`COLUMNS`, and of the days ``stored``, which
    may have no row.

    Raises InputMissing (66) where no row names a site.
    """
    import polars as pl

    for name in ("remote", "bytes"):
        if name not in table.columns:
            table = table.with_columns(pl.lit(None, pl.Float64).alias(name))
    is_somewhere = pl.col("site").is_not_null() & (pl.col("site") != _NO_SITE)
    nowhere = table.filter(~is_somewhere)["accesses"].sum()
    counted = (
        table.filter(is_somewhere)
        .with_columns(can_say=pl.when(pl.col("remote").is_not_null()).then(pl.col("accesses")))
        .group_by("day", "dataset", "site")
        .agg(pl.col(name).sum() for name in _MEASURES)
        .sort("day", "dataset", "site")
    )
    if counted.is_empty():
        raise InputMissing(
            "no access names a site", next_step="give days whose logs name the sites of jobs"
        )
    all_days = {*table["day"].unique().to_list(), *stored}
    first, last = min(all_days), max(all_days)
    days = tuple(first + timedelta(days=number) for number in range((last - first).days + 1))
    datasets, dataset = np.unique(counted["dataset"].to_numpy().astype(str), return_inverse=True)
    sites, site = np.unique(counted["site"].to_numpy().astype(str), return_inverse=True)
    number = (counted["day"].to_numpy().astype("datetime64[D]") - np.datetime64(first)).astype(int)
    accesses, can_say, remote, read = (
        counted[name].cast(pl.Float64).fill_null(0).to_numpy() for name in _MEASURES
    )
    names, site_names = tuple(datasets.tolist()), tuple(sites.tolist())
    return Reads(
        days,
        names,
        site_names,
        number,
        dataset,
        site,
        accesses,
        can_say,
        remote,
        read,
        int(nowhere),
    )


def stored_reads(stored: StoredDays) -> Reads:
    """Return the accesses of stored days, all their streams together; jobs are not accesses.

    Raises DataError (65) where a day's partials are damaged.
    """
    import polars as pl

    frames = []
    for batch in stored.batches(
        ["stream", "dataset_name", "site_name", "app", "nacc", "remote_nacc", "read_bytes"]
    ):
        for day, rows in batch:
            frame = pl.DataFrame(pl.from_arrow(rows)).filter(
                pl.col("stream").is_in(ACCESS_STREAMS), pl.col("app") != STORAGE_APP
            )
            frame = frame.select(
                day=pl.lit(day),
                dataset=pl.col("dataset_name").cast(pl.String),
                site=pl.col("site_name").cast(pl.String),
                accesses=pl.col("nacc").cast(pl.Float64),
                remote=pl.col("remote_nacc").cast(pl.Float64),
                bytes=pl.col("read_bytes").cast(pl.Float64),
            )
            is_known = pl.col("remote").is_not_null()
            frames.append(
                frame.filter(pl.col("dataset").is_not_null())
                .group_by("day", "dataset", "site", is_known.alias("known"))
                .agg(pl.col("accesses").sum(), pl.col("remote").sum(), pl.col("bytes").sum())
                .with_columns(remote=pl.when("known").then("remote"))
                .drop("known")
            )
    return make_reads(pl.concat(frames), stored.partials)
