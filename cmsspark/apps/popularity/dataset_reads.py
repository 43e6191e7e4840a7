"""Where, through which streams and by whom datasets were read, as features: sites,
remote reads, streams, users.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

import msgspec
import numpy as np
import polars as pl

from cmsspark.base.arrays import Array
from cmsspark.sources.registry import ACCESS_STREAMS

_DAYS: Final = (7, 28)
_NAMES: Final = (
    "log_sites",
    "largest_site_share",
    "remote_share",
    "is_remote_known",
    "log_distinct_users",
    *(f"{stream.replace('-', '_')}_share" for stream in ACCESS_STREAMS),
)
#: The features: each over the last 7 and 28 days.
READS_COLUMNS: Final = tuple(f"{name}_{days}d" for days in _DAYS for name in _NAMES)
#: A site that the log does not name.
_UNKNOWN_SITE: Final = "unknown"


class DatasetReads(msgspec.Struct, frozen=True):
    """``reads``: accesses by day, dataset, site and stream, a row each, in order of
    days; ``users``: who read, a row for each day, dataset and user.

    ``day``, ``dataset_name``, ``site_name``, ``stream``, ``user``: int32 numbers, a
    site is -1 where it is unknown. ``nacc``: int64. ``remote_nacc``: int64 accesses
    from another site, -1 where no record says.
    """

    reads: pl.DataFrame
    users: pl.DataFrame

    def until(self, count: int) -> DatasetReads:
        """Return the reads before day number ``count``."""
        return self._between(0, count)

    def only(self, chosen: Array) -> DatasetReads:
        """Return the reads of the datasets of these numbers, which ascend, under their
        new numbers.
        """
        numbers = pl.DataFrame(
            {"dataset_name": chosen}, {"dataset_name": pl.Int32}
        ).with_row_index("number")
        numbers = numbers.cast(pl.Int32)
        fewer = (
            frame.join(numbers, "dataset_name", maintain_order="left")
            for frame in (self.reads, self.users)
        )
        return DatasetReads(
            *(frame.drop("dataset_name").rename({"number": "dataset_name"}) for frame in fewer)
        )

    def columns(self, day: int, count: int) -> dict[str, Array]:
        """Feature → float64 [datasets] of the days before day number ``day``;
        ``count``: of datasets. Numbers are log(1 + x), shares 0 to 1; without an
        access, or where no record says, they are 0.
        """
        columns: dict[str, Array] = {}
        for days in _DAYS:
            values = self._between(max(day - days, 0), day)._features(count)
            columns |= {f"{name}_{days}d": values[name] for name in _NAMES}
        return columns

    def _between(self, first: int, end: int) -> DatasetReads:
        edges = [
            np.searchsorted(frame["day"].to_numpy(), (first, end)).tolist()
            for frame in (self.reads, self.users)
        ]
        return DatasetReads(self.reads[slice(*edges[0])], self.users[slice(*edges[1])])

    def _features(self, count: int) -> dict[str, Array]:
        names = ("dataset_name", "site_name", "stream", "nacc", "remote_nacc")
        dataset, site, stream, accesses, remote = (self.reads[name].to_numpy() for name in names)
        is_known, says = site >= 0, remote >= 0
        at_sites, sums = _by_pair(dataset[is_known], site[is_known], accesses[is_known])
        largest = np.zeros(count)
        np.maximum.at(largest, at_sites, sums)
        can_say = np.bincount(dataset[says], accesses[says], count)
        user_dataset, user = (self.users[name].to_numpy() for name in ("dataset_name", "user"))
        people, _ = _by_pair(user_dataset, user, np.ones(len(user)))
        every = np.bincount(dataset, accesses, count)
        by_stream = np.bincount(
            stream.astype(np.int64) * count + dataset, accesses, len(ACCESS_STREAMS) * count
        )
        streams = zip(ACCESS_STREAMS, by_stream.reshape(-1, count), strict=True)
        return {
            "log_sites": np.log1p(np.bincount(at_sites, minlength=count)),
            "largest_site_share": _share(largest, np.bincount(at_sites, sums, count)),
            "remote_share": _share(np.bincount(dataset[says], remote[says], count), can_say),
            "is_remote_known": (can_say > 0).astype(float),
            "log_distinct_users": np.log1p(np.bincount(people, minlength=count)),
            **{f"{name.replace('-', '_')}_share": _share(part, every) for name, part in streams},
        }


def _by_pair(dataset: Array, partner: Array, values: Array) -> tuple[Array, Array]:
    """Return (dataset, sum of values) of each different pair."""
    width = int(partner.max()) + 1 if len(partner) else 1
    pairs, numbers = np.unique(dataset.astype(np.int64) * width + partner, return_inverse=True)
    return pairs // width, np.bincount(numbers, values, len(pairs))


def _share(part: Array, total: Array) -> Array:
    return np.divide(part, total, out=np.zeros(len(total)), where=total > 0)


#: Of a day: accesses by dataset, site and stream, and who read which dataset. Names are
#: categories, which take four bytes each.
DayReads = tuple[date, pl.DataFrame, pl.DataFrame]


def day_reads(day: date, rows: pl.DataFrame) -> DayReads:
    """Return a day's reads, from ``rows`` of streams of accesses: stream, dataset,
    site, user and counts.
    """
    is_site = pl.col("site_name") != _UNKNOWN_SITE
    coded = rows.select(
        pl.col("dataset_name", "user").cast(pl.Categorical),
        pl.when(is_site).then("site_name").cast(pl.Categorical),
        pl.col("stream").cast(pl.Enum(ACCESS_STREAMS)),
        "nacc",
        "remote_nacc",
    )
    says = pl.col("remote_nacc").is_not_null()
    keys = ("dataset_name", "site_name", "stream", says.alias("says"))
    reads = coded.group_by(keys).agg(pl.col("nacc").sum(), pl.col("remote_nacc").sum())
    return day, reads, coded.select("dataset_name", "user").drop_nulls().unique()


def join_reads(every: Sequence[DayReads], first: date, datasets: Sequence[str]) -> DatasetReads:
    """Return the reads of days, with days counted from ``first``, and datasets under
    their numbers in ``datasets``.
    """
    names = pl.Enum(datasets)

    def numbered(day: date, rows: pl.DataFrame) -> pl.DataFrame:
        codes = rows.select(
            pl.col(pl.Categorical, pl.Enum).exclude("dataset_name").to_physical().cast(pl.Int32)
        )
        dataset = rows["dataset_name"].cast(pl.String).cast(names).to_physical().cast(pl.Int32)
        return rows.with_columns(dataset, *codes, day=pl.lit((day - first).days, pl.Int32))

    days = sorted(every, key=lambda entry: entry[0])
    reads = pl.concat([numbered(day, rows) for day, rows, _ in days], rechunk=True).with_columns(
        pl.col("site_name").fill_null(-1),
        pl.when("says").then("remote_nacc").otherwise(-1).cast(pl.Int64),
        pl.col("nacc").cast(pl.Int64),
    )
    return DatasetReads(
        reads, pl.concat([numbered(day, rows) for day, _, rows in days], rechunk=True)
    )
