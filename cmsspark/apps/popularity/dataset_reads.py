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


class ReadsBuilder:
    """Makes :class:`DatasetReads` of days of partials, one after the other."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {"dataset_name": {}, "site_name": {}, "user": {}}
        self._days: list[tuple[date, pl.DataFrame, pl.DataFrame]] = []

    def add(self, day: date, rows: pl.DataFrame) -> None:
        """``rows``: stream, dataset_name, site_name, user, nacc and remote_nacc of streams of accesses."""
        numbers = pl.Enum(ACCESS_STREAMS)
        coded = rows.select(
            *(self._coded(rows[name]) for name in self._numbers),
            pl.col("stream").cast(numbers).to_physical().cast(pl.Int32), "nacc", "remote_nacc",
        )  # fmt: skip
        is_known = pl.col("remote_nacc").is_not_null()
        reads = coded.group_by("dataset_name", "site_name", "stream", is_known.alias("known")).agg(
            pl.col("nacc").sum(), pl.col("remote_nacc").sum()
        )
        people = coded.select("dataset_name", "user").drop_nulls().unique()
        self._days.append((day, reads, people))

    def _coded(self, names: pl.Series) -> pl.Series:
        """Return numbers of the names, which are the same on all days."""
        numbers = self._numbers[names.name]
        different = names.drop_nulls().unique(maintain_order=True)
        codes = [numbers.setdefault(name, len(numbers)) for name in different.to_list()]
        return names.replace_strict(different, pl.Series(codes, dtype=pl.Int32), default=None, return_dtype=pl.Int32)

    def build(self, days: Sequence[date], datasets: Sequence[str]) -> DatasetReads:
        """Return the reads, with days and datasets under their numbers in these."""
        numbers = {name: number for number, name in enumerate(datasets)}
        dataset = np.array([numbers[name] for name in self._numbers["dataset_name"]], np.int32)
        unknown = self._numbers["site_name"].get(_UNKNOWN_SITE)
        self._days.sort(key=lambda entry: entry[0])
        first = days[0]
        reads = [(np.full(len(rows), (day - first).days, np.int32), rows) for day, rows, _ in self._days]
        users = [(np.full(len(rows), (day - first).days, np.int32), rows) for day, _, rows in self._days]
        site = _column(reads, "site_name", np.int32)
        if unknown is not None:
            site = np.where(site == unknown, np.int32(-1), site)
        return DatasetReads(
            np.concatenate([day for day, _ in reads]), dataset[_column(reads, "dataset_name", np.int32)], site,
            _column(reads, "stream", np.int32), _column(reads, "nacc", np.int64),
            np.where(_column(reads, "known", bool), _column(reads, "remote_nacc", np.int64), -1),
            np.concatenate([day for day, _ in users]), dataset[_column(users, "dataset_name", np.int32)],
            _column(users, "user", np.int32),
        )  # fmt: skip


def _column(frames: Sequence[tuple[Array, pl.DataFrame]], name: str, kind: Any) -> Array:
    return np.concatenate([frame[name].to_numpy().astype(kind) for _, frame in frames])
