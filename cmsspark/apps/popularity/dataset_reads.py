"""Where, through which streams and by whom datasets were read, as features: sites, remote reads, streams, users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

import numpy as np
import polars as pl

from cmsspark.base.arrays import Array
from cmsspark.sources.registry import ACCESS_STREAMS

_DAYS: Final = (7, 28)
_NAMES: Final = (
    "log_sites", "largest_site_share", "remote_share", "is_remote_known", "log_distinct_users",
    *(f"{stream.replace('-', '_')}_share" for stream in ACCESS_STREAMS),
)  # fmt: skip
#: The features: each over the last 7 and 28 days.
READS_COLUMNS: Final = tuple(f"{name}_{days}d" for days in _DAYS for name in _NAMES)
#: Those that a series by site has not.
OF_SITES: Final = tuple(f"{name}_{days}d" for days in _DAYS for name in ("log_sites", "largest_site_share"))
#: A site that the log does not name.
_UNKNOWN_SITE: Final = "unknown"


@dataclass(frozen=True)
class DatasetReads:
    """Accesses by day, dataset, site and stream, an element each, in order of days; and who read, an element for each
    day, dataset and user.

    ``day``, ``dataset``, ``site``, ``stream``: int32 numbers, a site is -1 where it is unknown. ``accesses``: int64.
    ``remote``: int64 accesses from another site, -1 where no record says. ``user_day``, ``user_dataset``, ``user``:
    int32 numbers.
    """

    day: Array
    dataset: Array
    site: Array
    stream: Array
    accesses: Array
    remote: Array
    user_day: Array
    user_dataset: Array
    user: Array

    def until(self, count: int) -> DatasetReads:
        """Return the reads before day number ``count``."""
        return self._between(0, count)

    def only(self, chosen: Array) -> DatasetReads:
        """Return the reads of the datasets of these numbers, which ascend, under their new numbers."""
        rows, users = np.isin(self.dataset, chosen), np.isin(self.user_dataset, chosen)
        fewer = self._where(rows, users)
        numbers = [np.searchsorted(chosen, column).astype(np.int32) for column in (fewer.dataset, fewer.user_dataset)]
        return replace(fewer, dataset=numbers[0], user_dataset=numbers[1])

    def columns(self, day: int, count: int) -> dict[str, Array]:
        """Feature → float64 [datasets] of the days before day number ``day``; ``count``: of datasets. Numbers are
        log(1 + x), shares 0 to 1; without an access, or where no record says, they are 0.
        """
        columns: dict[str, Array] = {}
        for days in _DAYS:
            window = self._between(max(day - days, 0), day)
            values = window._features(count)
            columns |= {f"{name}_{days}d": values[name] for name in _NAMES}
        return columns

    def _between(self, first: int, end: int) -> DatasetReads:
        rows, users = (slice(*np.searchsorted(days, (first, end))) for days in (self.day, self.user_day))
        return self._where(rows, users)

    def _where(self, rows: Any, users: Any) -> DatasetReads:
        first = (self.day, self.dataset, self.site, self.stream, self.accesses, self.remote)
        last = (self.user_day, self.user_dataset, self.user)
        return DatasetReads(*(column[rows] for column in first), *(column[users] for column in last))

    def _features(self, count: int) -> dict[str, Array]:
        every = np.bincount(self.dataset, self.accesses, count)
        is_known = self.site >= 0
        dataset, sums = _by_pair(self.dataset[is_known], self.site[is_known], self.accesses[is_known])
        largest = np.zeros(count)
        np.maximum.at(largest, dataset, sums)
        says = self.remote >= 0
        can_say = np.bincount(self.dataset[says], self.accesses[says], count)
        people, _ = _by_pair(self.user_dataset, self.user, np.ones(len(self.user)))
        streams = {
            f"{name.replace('-', '_')}_share": _share(self._count_stream(number, count), every)
            for number, name in enumerate(ACCESS_STREAMS)
        }
        return {
            "log_sites": np.log1p(np.bincount(dataset, minlength=count)),
            "largest_site_share": _share(largest, np.bincount(dataset, sums, count)),
            "remote_share": _share(np.bincount(self.dataset[says], self.remote[says], count), can_say),
            "is_remote_known": (can_say > 0).astype(float),
            "log_distinct_users": np.log1p(np.bincount(people, minlength=count)),
            **streams,
        }

    def _count_stream(self, number: int, count: int) -> Array:
        of_it = self.stream == number
        return np.bincount(self.dataset[of_it], self.accesses[of_it], count)


def _by_pair(dataset: Array, partner: Array, values: Array) -> tuple[Array, Array]:
    """Return (dataset, sum of values) of each different pair."""
    width = int(partner.max()) + 1 if len(partner) else 1
    pairs, numbers = np.unique(dataset.astype(np.int64) * width + partner, return_inverse=True)
    return pairs // width, np.bincount(numbers, values, len(pairs))


def _share(part: Array, total: Array) -> Array:
    return np.divide(part, total, out=np.zeros(len(total)), where=total > 0)


#: Of a day: accesses by dataset, site and stream, and who read which dataset. Names are categories, which take four
#: bytes each.
DayReads = tuple[date, pl.DataFrame, pl.DataFrame]


def day_reads(day: date, rows: pl.DataFrame) -> DayReads:
    """Return the reads of a day. ``rows``: stream, dataset_name, site_name, user, nacc and remote_nacc of streams of
    accesses.
    """
    is_site = pl.col("site_name") != _UNKNOWN_SITE
    coded = rows.select(
        pl.col("dataset_name", "user").cast(pl.Categorical), pl.when(is_site).then("site_name").cast(pl.Categorical),
        pl.col("stream").cast(pl.Enum(ACCESS_STREAMS)), "nacc", "remote_nacc",
    )  # fmt: skip
    says = pl.col("remote_nacc").is_not_null()
    keys = ("dataset_name", "site_name", "stream", says.alias("says"))
    reads = coded.group_by(keys).agg(pl.col("nacc").sum(), pl.col("remote_nacc").sum())
    return day, reads, coded.select("dataset_name", "user").drop_nulls().unique()


def join_reads(every: Sequence[DayReads], first: date, datasets: Sequence[str]) -> DatasetReads:
    """Return the reads of days, with days counted from ``first``, and datasets under their numbers in ``datasets``."""
    names = pl.Enum(datasets)

    def numbered(day: date, rows: pl.DataFrame) -> pl.DataFrame:
        codes = rows.select(pl.col(pl.Categorical, pl.Enum).exclude("dataset_name").to_physical().cast(pl.Int32))
        dataset = rows["dataset_name"].cast(pl.String).cast(names).to_physical().cast(pl.Int32)
        return rows.with_columns(dataset, *codes, day=pl.lit((day - first).days, pl.Int32))

    days = sorted(every, key=lambda entry: entry[0])
    reads = pl.concat([numbered(day, rows) for day, rows, _ in days]).with_columns(
        pl.col("site_name").fill_null(-1), pl.when("says").then("remote_nacc").otherwise(-1).cast(pl.Int64),
        pl.col("nacc").cast(pl.Int64),
    )  # fmt: skip
    users = pl.concat([numbered(day, rows) for day, _, rows in days])
    columns = ("day", "dataset_name", "site_name", "stream", "nacc", "remote_nacc")
    return DatasetReads(
        *(reads[name].to_numpy() for name in columns),
        *(users[name].to_numpy() for name in ("day", "dataset_name", "user")),
    )
