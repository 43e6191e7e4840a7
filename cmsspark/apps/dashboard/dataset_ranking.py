"""Datasets by use: the largest first, their users, and how concentrated use is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.segment import SET_TABLES, SUM_TABLES, SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot, to_day
from cmsspark.apps.dashboard.use import (
    MEASURES,
    OF_JOBS,
    Series,
    integer,
    mixed_steps,
    partial_steps,
    with_zeros,
)

if TYPE_CHECKING:
    import pyarrow as pa


#: Sums by dataset: the values, and whether there are any; values of 64 bits, or
#: Python's where sums may be larger.
Sums = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]
#: Flags of all people for all datasets take some 50 MB.
_ONE_AT_A_TIME: Final = threading.Lock()
#: The share of all datasets from which on all are counted: choosing takes longer.
_MANY: Final = 0.25
#: The tier of a site in SQL.
SITE_TIER_SQL: Final = "split_part(site_name::VARCHAR, '_', 1)"


@dataclass(frozen=True)
class DatasetRanking:
    """Datasets by a measure, the largest first: their numbers in the snapshot's names,
    and the measure.

    ``counted``: what the selection is about, accesses or jobs; ``measured``: its
    measure. Both are in that order.
    """

    snapshot: Snapshot
    chosen: Selection
    codes: npt.NDArray[np.int64]
    counted: Sums
    measured: Sums

    @cached_property
    def counts(self) -> list[int | None]:
        """The accesses or jobs of each dataset; None of one that has only the other."""
        return _cells(self.counted)

    @cached_property
    def values(self) -> list[int | None]:
        """The measure of each dataset, None where it has none."""
        return _cells(self.measured)

    def __len__(self) -> int:
        return len(self.codes)

    def names(self, positions: Sequence[int] | None = None) -> list[str]:
        """Return the names at some positions, by default at all."""
        every = self.snapshot.names["dataset_name"]
        return [
            every[self.codes[n]] for n in (range(len(self)) if positions is None else positions)
        ]

    @cached_property
    def total(self) -> int:
        """The accesses or jobs of all datasets."""
        return int(self.counted[0].sum())

    @cached_property
    def used(self) -> int:
        """The number of datasets that have accesses, or jobs where the selection is about these."""
        return int(self.counted[1].sum())

    def sums(self, names: Sequence[str]) -> dict[str, list[int | None]]:
        """Column of ``SUMS`` → its values for some of the datasets."""
        positions = self.snapshot.datasets.positions
        codes = np.array([positions[name] for name in names], np.int64)
        return sum_datasets(self.snapshot, self.chosen.only(*FILTERS), codes)


def sum_datasets(
    snapshot: Snapshot, chosen: Selection, codes: npt.NDArray[np.int64]
) -> dict[str, list[int | None]]:
    """Column of ``SUMS`` → its values for the datasets with these numbers, which have
    the data tiers and campaigns of the selection.
    """
    chosen.check(FILTERS)
    sums = sums_of_datasets(snapshot, chosen, SUMS, codes)
    return {column: _cells(_take(sums[column], codes)) for column in SUMS}


def datasets(snapshot: Snapshot, chosen: Selection) -> DatasetRanking:
    """Return the datasets with accesses, or with jobs for a measure or stream of jobs,
    the largest first.
    """
    chosen.check(FILTERS, groups=("dataset_name",), measures=MEASURES)

    def make() -> DatasetRanking:
        measure = chosen.measure
        counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"
        columns = {counted} if measure == "users" else {counted, measure}
        sums = sums_of_datasets(snapshot, chosen, sorted(columns))
        if measure == "users":
            sums["users"] = _users_of_all(snapshot, chosen)
        is_there = sums[counted][1] | sums[measure][1]
        is_there &= are_chosen(snapshot, chosen)
        codes = np.flatnonzero(is_there)
        amounts, has_value = (part[codes] for part in sums[measure])
        # Names are in order, so their numbers decide between equal values.
        order = (
            codes[np.lexsort((codes, np.negative(np.where(has_value, amounts, -1))))]
            if amounts.dtype != object
            else codes[
                sorted(
                    range(len(codes)), key=lambda n: (not has_value[n], -int(amounts[n]), codes[n])
                )
            ]
        )
        return DatasetRanking(
            snapshot, chosen, order, _take(sums[counted], order), _take(sums[measure], order)
        )

    return snapshot.cached(("datasets", chosen), make)


def are_chosen(snapshot: Snapshot, chosen: Selection) -> npt.NDArray[np.bool_]:
    """Return whether each dataset has a data tier and a campaign of the selection."""
    tables = snapshot.datasets
    tiers, campaigns = (
        tables.match_any(name, chosen.values(name)) for name in ("data_tier", "campaign")
    )
    return tiers & campaigns


def _take(sums: Sums, codes: npt.NDArray[np.int64]) -> Sums:
    values, is_there = sums
    return values[codes], is_there[codes]


def _cells(sums: Sums) -> list[int | None]:
    """Return the sums, None where there is none."""
    values, is_there = sums
    cells: list[int | None] = values.tolist()
    for number in np.flatnonzero(~is_there):
        cells[number] = None
    return cells


def sums_of_datasets(
    snapshot: Snapshot,
    chosen: Selection,
    columns: Sequence[str],
    subset: npt.NDArray[np.int64] | None = None,
) -> dict[str, Sums]:
    """Return sums of each dataset, by its number; of a few, where ``subset`` has these.

    Data tier and campaign of the selection follow from the name: the caller chooses by it.
    """
    chosen = replace(chosen.only("stream", "site_tier"), step="day")
    if subset is not None and len(subset) > _MANY * len(snapshot.datasets.names):
        subset = None
    stored: dict[str, Sums] = snapshot.cached(("sums_of_datasets", chosen), dict)
    missing = [name for name in columns if name not in stored]
    if missing and subset is not None:
        return _sums_of_datasets(snapshot, chosen, columns, subset)
    if missing:
        stored.update(_sums_of_datasets(snapshot, chosen, missing, None))
    return {name: stored[name] for name in columns}


def _sums_of_datasets(
    snapshot: Snapshot,
    chosen: Selection,
    columns: Sequence[str],
    subset: npt.NDArray[np.int64] | None,
) -> dict[str, Sums]:
    """Sum whole segments from sums by dataset, days of cut segments from their rows."""
    inside, cut = snapshot.split(chosen.first, chosen.last)
    filters = {"stream": "stream", "site_tier": SITE_TIER_SQL}
    parts: list[str] = []
    values: list[object] = []
    sums_table = "dataset_sums" if chosen.filters else "dataset_totals"
    for table, segments in ((sums_table, inside), ("detail", cut)):
        if segments:
            is_whole = table == sums_table
            where, parameters = chosen.where(
                SUM_TABLES[sums_table][:-1] if is_whole else filters, days_too=not is_whole
            )
            parts.append(
                f"SELECT dataset, {', '.join(columns)} "
                f"FROM {snapshot.rows(table, segments=segments)} WHERE {where}"
            )
            values += parameters
            if subset is not None:
                parts[-1] += " AND dataset IN (SELECT unnest(?::INTEGER[]))"
                values.append(snapshot.datasets.numbers[subset].tolist())
    cells = ", ".join(f"sum({name})::{snapshot.kinds[name]} AS {name}" for name in columns)
    rows = (
        snapshot.arrow(
            f"SELECT dataset, {cells} FROM ({' UNION ALL '.join(parts)}) GROUP BY 1", values
        )
        if parts
        else None
    )
    sums: dict[str, Sums] = {}
    count = len(snapshot.datasets.names)
    for name in columns:
        is_wide = snapshot.kinds[name] != "BIGINT"
        sums[name] = np.zeros(count, object if is_wide else np.int64), np.zeros(count, np.bool_)
        if rows is not None:
            codes = snapshot.datasets.codes[rows["dataset"].to_numpy()]
            added = (
                np.array([int(value or 0) for value in rows[name].to_pylist()], dtype=object)
                if is_wide
                else rows[name].fill_null(0).to_numpy()
            )
            sums[name][0][codes] = added
            sums[name][1][codes] = rows[name].is_valid().to_numpy()
    return sums


def users_of_datasets(
    snapshot: Snapshot, chosen: Selection, names: Sequence[str]
) -> list[int | None]:
    """Return the distinct users of each dataset: of accesses, or of jobs for a stream of
    jobs. The datasets have the data tiers and campaigns of the selection.
    """
    chosen.check(FILTERS)

    def make() -> list[int | None]:
        if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
            return [None] * len(names)
        datasets = snapshot.datasets
        codes = np.array([datasets.positions[name] for name in names], np.int64)
        with _ONE_AT_A_TIME:
            return list(_count_users(snapshot, chosen.only("stream", "site_tier"), codes))

    return snapshot.cached(("users_of_datasets", chosen, tuple(names)), make)


def _users_of_all(snapshot: Snapshot, chosen: Selection) -> Sums:
    """Return the distinct users of every dataset of the selection; nothing where its
    days have two pseudonym keys.
    """
    names = snapshot.datasets.names
    counts, is_there = np.zeros(len(names), np.int64), np.zeros(len(names), np.bool_)
    if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
        return counts, is_there
    # Datasets without any use in the selection are not asked for.
    counted = "job_count" if chosen.is_of_jobs else "nacc"
    _, is_used = sums_of_datasets(snapshot, chosen, [counted])[counted]
    codes = np.flatnonzero(is_used & are_chosen(snapshot, chosen))
    used_names = [names[code] for code in codes]
    users = users_of_datasets(snapshot, chosen.only(*FILTERS), used_names)
    counts[codes] = [count or 0 for count in users]
    is_there[codes] = True
    return counts, is_there


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
        source = snapshot.rows(table, segments=segments)
        where, parameters = condition
        return snapshot.arrow(
            f"SELECT dataset, {cells} FROM {source} WHERE {where}{only}", [*parameters, *numbers]
        )

    # NumPy joins sets that lie apart in a fifth of the time of ``bit_or``.
    sets = np.zeros((len(codes), width // 8), np.uint64)
    columns = {name for name, _ in chosen.filters}
    sets_table = next(
        name for name, keys in SET_TABLES.items() if keys[-1] == "dataset" and columns <= {*keys}
    )
    if chosen.values("stream"):
        of_sets = chosen.where_users(("site_tier",), days_too=False)
    else:
        # The table has the streams of accesses alone.
        of_sets = chosen.where(SET_TABLES[sets_table][:-1], days_too=False)
    # The sets of all datasets of a year would take much memory at once.
    for segments in [inside] if is_few and inside else [[number] for number in inside]:
        rows = read("users", sets_table, segments, of_sets)
        for batch in rows.to_batches():
            _join_sets(sets, positions[batch["dataset"].to_numpy()], batch["users"])
    if cut:
        flags = np.zeros((len(codes), 8 * width), np.bool_)
        for number in cut:
            rows = read("person", "people", [number], chosen.where_users(("site_tier",)))
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
    values, is_there = ranking.measured
    sums = np.cumsum(values[is_there & (values > 0).astype(np.bool_)])
    if not len(sums):
        return []
    total = int(sums[-1])
    numbers = [base * 10**power for power in range(7) for base in (1, 2, 5)]
    chosen = [number for number in numbers if number < len(sums)] + [len(sums)]
    return [(number, int(sums[number - 1]), int(sums[number - 1]) / total) for number in chosen]


# The use of one dataset: over time, by site, by application; and when it was read last.


@dataclass(frozen=True)
class DatasetUse:
    """What the pages show of a dataset in a period.

    ``totals``: sums as in ``SUMS``. ``by_day``: (day, stream, sums …); ``by_site``:
    (site, sums …); ``by_app``: (app, sums …). ``users``: distinct people in each step
    of the period; ``all_users``: over all of it, None where the days have two pseudonym
    keys. ``last_access``: over all stored days.
    """

    totals: tuple[int | None, ...]
    by_day: list[tuple[Any, ...]]
    by_site: list[tuple[Any, ...]]
    by_app: list[tuple[Any, ...]]
    users: list[int | None]
    all_users: int | None
    last_access: date | None


def load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    """Return the use of a dataset in the selection's period and stream."""
    chosen.check(("stream",))
    return snapshot.cached(("dataset", chosen, name), lambda: _load_use(snapshot, chosen, name))


def _load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    number = snapshot.datasets.number(name)
    where, parameters = chosen.where(("stream",))
    sums = ", ".join(f"sum({column})" for column in SUMS)
    step = f"date_trunc('{chosen.step}', day)::DATE"
    # The rows are read once for all groups.
    rows = snapshot.query(
        f"SELECT grouping(step, site_name, app), step, stream, site_name, app, {sums} "
        f"FROM (SELECT *, {step} AS step FROM {snapshot.rows('detail', chosen.first, chosen.last)} "
        f"WHERE dataset = ? AND {where}) "
        "GROUP BY GROUPING SETS ((step, stream), (site_name), (app), ())",
        [number, *parameters],
    )
    groups: dict[int, list[tuple[Any, ...]]] = {}
    for mark, step_day, stream, site, app, *values in rows:
        keys = {0b011: (step_day, stream), 0b101: (site,), 0b110: (app,), 0b111: ()}[mark]
        groups.setdefault(mark, []).append((*keys, *map(integer, values)))
    (totals,) = groups[0b111]
    users, everyone = _users(snapshot, chosen, number)
    return DatasetUse(
        totals,
        sorted(groups.get(0b011, [])),
        sorted(groups.get(0b101, []), key=_largest),
        sorted(groups.get(0b110, []), key=_largest),
        users,
        everyone,
        last_access(snapshot, name),
    )


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


def _users(
    snapshot: Snapshot, chosen: Selection, number: int
) -> tuple[list[int | None], int | None]:
    """Return the distinct users of each step of the period, and of all of it."""
    where, parameters = chosen.where_users(())
    rows = snapshot.query(
        f"SELECT date_trunc('{chosen.step}', day)::DATE AS step, count(DISTINCT person) "
        f"FROM {snapshot.rows('people', chosen.first, chosen.last)} "
        f"WHERE dataset = ? AND {where} GROUP BY GROUPING SETS ((step), ())",
        [number, *parameters],
    )
    counts = dict(rows)
    buckets = chosen.buckets()
    per_step = [
        None if mixed else counts.get(day, 0)
        for mixed, day in zip(mixed_steps(snapshot, chosen, buckets), buckets, strict=True)
    ]
    has_two_keys = len(snapshot.find_keys(chosen.first, chosen.last)) > 1
    return per_step, None if has_two_keys else counts[None]


def series_by_stream(snapshot: Snapshot, result: DatasetUse, chosen: Selection) -> Series:
    """Return the measure of a dataset's use over time by stream."""
    chosen.check(("stream",), groups=("stream",), measures=SUMS)
    measure = chosen.measure
    buckets = chosen.buckets()
    position = {day: number for number, day in enumerate(buckets)}
    column = 2 + SUMS.index(measure)
    values: dict[str, list[int | None]] = {}
    for row in result.by_day:
        if row[column] is not None:
            values.setdefault(row[1], [None] * len(buckets))[position[row[0]]] = int(row[column])
    if measure in ("nacc", "job_count"):
        with_zeros(snapshot, chosen, values, measure, "stream")
    return Series(buckets, values, partial=partial_steps(snapshot, chosen))


def _largest(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the order of groups: the most accesses first, then the most jobs."""
    nacc, jobs = (row[1 + SUMS.index(name)] for name in ("nacc", "job_count"))
    return 1 if nacc is None else -nacc, 0 if jobs is None else -jobs, row[0]
