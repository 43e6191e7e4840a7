"""Datasets by use: the largest first, their users, and how concentrated use is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.rollup_query import (
    Row,
    choose_table,
    sums,
    sums_of_datasets,
    where,
)
from cmsspark.apps.dashboard.segment import SET_TABLES, SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot, to_day
from cmsspark.apps.dashboard.use import (
    MEASURES,
    OF_JOBS,
    Series,
    mixed_steps,
    sum_series,
)

if TYPE_CHECKING:
    import pyarrow as pa


#: Flags of all people for all datasets take some 50 MB.
_ONE_AT_A_TIME: Final = threading.Lock()
#: The share of all datasets from which on all are counted: choosing takes longer.
_MANY: Final = 0.25


@dataclass(frozen=True)
class DatasetRanking:
    """Datasets by a measure, the largest first. ``rows``: of each its code in the
    snapshot's names, ``counted``, its accesses or jobs, and ``measured``, its measure;
    null where it has none.
    """

    snapshot: Snapshot
    chosen: Selection
    rows: pa.Table

    @cached_property
    def codes(self) -> npt.NDArray[np.int64]:
        """The codes of the datasets."""
        codes: npt.NDArray[np.int64] = self.rows["code"].to_numpy()
        return codes

    @cached_property
    def counts(self) -> list[int | None]:
        """The accesses or jobs of each dataset; None of one that has only the other."""
        return to_integers(self.rows["counted"])

    @cached_property
    def values(self) -> list[int | None]:
        """The measure of each dataset, None where it has none."""
        return to_integers(self.rows["measured"])

    def __len__(self) -> int:
        return len(self.codes)

    def names(self, positions: Sequence[int] | None = None) -> list[str]:
        """Return the names at some positions, by default at all."""
        every, codes = self.snapshot.datasets.names, self.codes
        return [every[code] for code in (codes if positions is None else codes[positions])]

    @cached_property
    def total(self) -> int:
        """The accesses or jobs of all datasets."""
        return sum(count or 0 for count in self.counts)

    @cached_property
    def used(self) -> int:
        """The number of datasets that have accesses, or jobs where the selection is about these."""
        return len(self) - int(self.rows["counted"].null_count)

    def sums(self, positions: Sequence[int]) -> pa.Table:
        """Return all sums of the datasets at some positions, in their order."""
        return sum_datasets(self.snapshot, self.chosen.only(*FILTERS), self.codes[positions])


def to_integers(column: pa.ChunkedArray) -> list[int | None]:
    """Return numbers as Python's, also those beyond 64 bits, which Arrow has as decimals."""
    is_wide = column.type.bit_width > 64
    return [int(value) if is_wide and value is not None else value for value in column.to_pylist()]


def sum_datasets(snapshot: Snapshot, chosen: Selection, codes: npt.NDArray[np.int64]) -> pa.Table:
    """Return all sums of the datasets with these codes, in their order; null of one
    without any.
    """
    import pyarrow as pa

    datasets = snapshot.datasets
    numbers = datasets.numbers[codes]
    if len(codes) <= _MANY * len(datasets.names):
        chosen = chosen.with_values("dataset", *(numbers.tolist() or [-1]))
    rows = sums_of_datasets(snapshot, chosen, SUMS)
    rows_of_numbers = np.full(len(datasets.codes), -1, np.int64)
    rows_of_numbers[rows["dataset"].to_numpy()] = np.arange(rows.num_rows)
    at = rows_of_numbers[numbers]
    return rows.take(pa.array(at, mask=at < 0)).drop_columns("dataset")


def datasets(snapshot: Snapshot, chosen: Selection) -> DatasetRanking:
    """Return the datasets with accesses, or with jobs for a measure or stream of jobs,
    the largest first.
    """
    chosen.check(FILTERS, groups=("dataset_name",), measures=MEASURES)
    return snapshot.cached(("datasets", chosen), lambda: _rank(snapshot, chosen))


def _rank(snapshot: Snapshot, chosen: Selection) -> DatasetRanking:
    import pyarrow as pa
    import pyarrow.compute as pc

    measure = chosen.measure
    counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"
    columns = [counted] if measure in ("users", counted) else [counted, measure]
    rows = sums_of_datasets(snapshot, chosen.only(*FILTERS), columns)
    codes = snapshot.datasets.codes[rows["dataset"].to_numpy()]
    measured = rows[columns[-1]]
    if measure == "users":
        measured = pa.array(
            [
                count if is_used else None
                for count, is_used in zip(
                    users_of_datasets(snapshot, chosen, codes),
                    rows[counted].is_valid().to_pylist(),
                    strict=True,
                )
            ],
            pa.int64(),
        )
    rows = pa.table({"code": codes, "counted": rows[counted], "measured": measured})
    rows = rows.filter(pc.or_(rows["counted"].is_valid(), rows["measured"].is_valid()))
    # Names are in order, so their codes decide between equal values.
    return DatasetRanking(
        snapshot, chosen, rows.sort_by([("measured", "descending"), ("code", "ascending")])
    )


def users_of_datasets(
    snapshot: Snapshot, chosen: Selection, codes: npt.NDArray[np.int64]
) -> list[int | None]:
    """Return the distinct users of each dataset: of accesses, or of jobs for a stream of
    jobs; None where the days have two pseudonym keys.
    """
    chosen = chosen.only("stream", "site_tier")

    def make() -> list[int | None]:
        if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
            return [None] * len(codes)
        with _ONE_AT_A_TIME:
            return [*_count_users(snapshot, chosen, codes)]

    return snapshot.cached(("users_of_datasets", chosen, codes.tobytes()), make)


def _count_users(snapshot: Snapshot, chosen: Selection, codes: npt.NDArray[np.int64]) -> list[int]:
    """Return the distinct users of each of some datasets: the union of the sets of whole
    segments, and of the people on the days of cut ones.
    """
    inside, cut = snapshot.split(chosen.first, chosen.last)
    datasets, width = snapshot.datasets, max(snapshot.widths, default=0)
    # Sets are in the order of the segments' rows.
    order = np.argsort(datasets.numbers[codes])
    positions = np.full(len(datasets.codes), -1, np.int64)
    positions[datasets.numbers[codes][order]] = np.arange(len(codes))
    # Most pages count those of the few datasets that they show.
    is_few = len(codes) <= _MANY * len(datasets.names)
    numbers = [datasets.numbers[codes].tolist()] if is_few else []
    only = " AND dataset IN (SELECT unnest(?::INTEGER[]))" if is_few else ""

    def read(
        cells: str, table: str, segments: Sequence[int], condition: tuple[str, list[object]]
    ) -> Any:
        source = snapshot.rows(table, segments)
        sql, parameters = condition
        return snapshot.arrow(
            f"SELECT dataset, {cells} FROM {source} WHERE {sql}{only}", [*parameters, *numbers]
        )

    # NumPy joins sets that lie apart in a fifth of the time of ``bit_or``.
    sets = np.zeros((len(codes), width // 8), np.uint64)
    table = choose_table(SET_TABLES, {"dataset"}, chosen)
    of_sets = where(chosen, SET_TABLES[table], has_days=False, of_users=True)
    # The sets of all datasets of a year would take much memory at once.
    for segments in [inside] if is_few and inside else [[number] for number in inside]:
        rows = read("users", table, segments, of_sets)
        for batch in rows.to_batches():
            _join_sets(sets, positions[batch["dataset"].to_numpy()], batch["users"])
    if cut:
        flags = np.zeros((len(codes), 8 * width), np.bool_)
        of_days = where(chosen, ("day", "stream", "site_tier"), of_users=True)
        for number in cut:
            rows = read("person", "people", [number], of_days)
            at = positions[rows["dataset"].to_numpy()]
            is_asked = at >= 0
            flags[at[is_asked], rows["person"].to_numpy()[is_asked]] = True
        sets |= np.packbits(flags, axis=1).view(np.uint64)
    counts = np.empty(len(codes), np.int64)
    counts[order] = np.bitwise_count(sets).sum(axis=1, dtype=np.int64)
    result: list[int] = counts.tolist()
    return result


def _join_sets(
    sets: npt.NDArray[np.uint64], at: npt.NDArray[np.int64], added: pa.BinaryArray
) -> None:
    """Add sets of people to those at their positions; a negative position is of no set."""
    width = sets.shape[1]
    words = np.frombuffer(added.buffers()[2], np.uint64)[added.offset * width :]
    words = words[: len(at) * width].reshape(len(at), width)
    if (at < 0).any():
        words, at = words[at >= 0], at[at >= 0]
    # Where positions rise, each is there once.
    ends = [*np.flatnonzero(np.diff(at) <= 0) + 1, len(at)] if len(at) else []
    for begin, end in zip([0, *ends], ends, strict=False):
        first, last = at[begin], at[end - 1]
        has_all = last - first == end - 1 - begin
        sets[slice(first, last + 1) if has_all else at[begin:end]] |= words[begin:end]


def concentration(ranking: DatasetRanking) -> list[tuple[int, int, float]]:
    """(N, sum of the N largest datasets, its share of the sum of all), for N of 1, 2,
    5, 10, 20, 50 … and all.
    """
    amounts = [*accumulate(value for value in ranking.values if value)]
    if not amounts:
        return []
    numbers = [base * 10**power for power in range(7) for base in (1, 2, 5)]
    chosen = [number for number in numbers if number < len(amounts)] + [len(amounts)]
    return [(number, amounts[number - 1], amounts[number - 1] / amounts[-1]) for number in chosen]


# The use of one dataset: over time, by site, by application; and when it was read last.


@dataclass(frozen=True)
class DatasetUse:
    """What the pages show of a dataset in a period.

    ``totals``: sums as in ``SUMS``. ``by_step``: (first day, stream, sums …); ``by_site``:
    (site, sums …); ``by_app``: (app, sums …), the most accesses first. ``users``: distinct
    people in each step of the period; ``all_users``: over all of it, None where the days
    have two pseudonym keys. ``last_access``: over all stored days.
    """

    totals: Row
    by_step: list[Row]
    by_site: list[Row]
    by_app: list[Row]
    users: list[int | None]
    all_users: int | None
    last_access: date | None


def load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    """Return the use of a dataset in the selection's period and stream."""
    chosen.check(("stream",))
    return snapshot.cached(("dataset", chosen, name), lambda: _load_use(snapshot, chosen, name))


def _load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    of_dataset = chosen.with_values("dataset", snapshot.datasets.number(name))
    # The rows are read once for all groups.
    groups = (("step", "stream"), ("site_name",), ("app",), ())
    by_step, by_site, by_app, (totals,) = sums(snapshot, of_dataset, *groups)
    users, everyone = _users(snapshot, of_dataset)
    last = last_access(snapshot, name)
    return DatasetUse(totals, sorted(by_step), by_site, by_app, users, everyone, last)


def last_access(snapshot: Snapshot, name: str) -> date | None:
    """Return the last stored day on which an access or a job read the dataset; None
    where it was on none.
    """
    code = snapshot.datasets.positions.get(name)
    day = -1 if code is None else snapshot.datasets.last_days[code]
    return None if day < 0 else to_day(day)


def last_at_sites(snapshot: Snapshot, name: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read the dataset at each site."""

    def make() -> dict[str, date]:
        rows = snapshot.query(
            f"SELECT site_name, max(day) FROM {snapshot.rows('detail')} "
            "WHERE dataset = ? AND (nacc > 0 OR job_count > 0) GROUP BY 1",
            [snapshot.datasets.number(name)],
        )
        return dict(rows)

    return snapshot.cached(("last_at_sites", name), make)


def _users(snapshot: Snapshot, chosen: Selection) -> tuple[list[int | None], int | None]:
    """Return the distinct users of each step of the period, and of all of it."""
    condition, parameters = where(chosen, ("dataset", "day", "stream"), of_users=True)
    inside, cut = snapshot.split(chosen.first, chosen.last)
    rows = snapshot.query(
        f"SELECT date_trunc('{chosen.step}', day)::DATE AS step, count(DISTINCT person) "
        f"FROM {snapshot.rows('people', sorted([*inside, *cut]))} "
        f"WHERE {condition} GROUP BY GROUPING SETS ((step), ())",
        parameters,
    )
    counts = dict(rows)
    buckets = chosen.buckets()
    per_step = [
        None if mixed else counts.get(day, 0)
        for mixed, day in zip(mixed_steps(snapshot, chosen, buckets), buckets, strict=True)
    ]
    has_two_keys = len(snapshot.find_keys(chosen.first, chosen.last)) > 1
    return per_step, None if has_two_keys else counts.get(None, 0)


def series_by_stream(snapshot: Snapshot, result: DatasetUse, chosen: Selection) -> Series:
    """Return the measure of a dataset's use over time by stream."""
    chosen.check(("stream",), groups=("stream",), measures=SUMS)
    at = 2 + SUMS.index(chosen.measure)
    return sum_series(snapshot, chosen, {row[:2]: row[at] for row in result.by_step})
