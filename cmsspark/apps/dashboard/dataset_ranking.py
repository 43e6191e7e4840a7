"""Datasets by use: the largest first, their users, and how concentrated use is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.dataset_tables import SAFE, Sums
from cmsspark.apps.dashboard.segment import NULL, SUMS, Segment
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot, day_number, to_day
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


#: Datasets whose users are counted at once: a flag for each person and dataset.
_BLOCK: Final = 1_024
#: The tier of a site in SQL.
SITE_TIER_SQL: Final = "split_part(site_name::VARCHAR, '_', 1)"
#: Names of a condition that stand in it as constants.
_FEW: Final = 500


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
    sums = _sums_of_datasets(snapshot, chosen, SUMS, codes)
    return {column: _cells(_take(sums[column], codes)) for column in SUMS}


def datasets(snapshot: Snapshot, chosen: Selection) -> DatasetRanking:
    """Return the datasets with accesses, or with jobs for a measure or stream of jobs,
    the largest first.
    """
    chosen.check(FILTERS, groups=("dataset_name",), measures=MEASURES)

    def make() -> DatasetRanking:
        measure = chosen.measure
        counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"
        is_of_users = measure == "users"
        sums = _sums_of_datasets(
            snapshot, chosen, list(dict.fromkeys((counted, counted if is_of_users else measure)))
        )
        if is_of_users:
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


def _sums_of_datasets(
    snapshot: Snapshot,
    chosen: Selection,
    columns: Sequence[str],
    subset: npt.NDArray[np.int64] | None = None,
) -> dict[str, Sums]:
    """Sums of each dataset, of some or all: whole segments from arrays, days of cut
    segments from files.

    Data tier and campaign of the selection follow from the name: the caller chooses by it.
    """
    inside, cut = snapshot.split(chosen.first, chosen.last)
    filters = {
        name: chosen.values(name) for name in ("stream", "site_tier") if chosen.values(name)
    }
    sums = snapshot.datasets.sums(inside, columns, filters, subset)
    if not cut:
        return sums
    names = None if subset is None else [snapshot.datasets.names[code] for code in subset]
    # The caller chooses the datasets by data tier and campaign.
    where, parameters = chosen.only("stream", "site_tier").where(
        {"stream": "stream", "site_tier": SITE_TIER_SQL}, days_too=False
    )
    name_test, of_names = named(names)
    rows = snapshot.arrow(
        f"SELECT dataset_name, {', '.join(f'sum({name}) AS {name}' for name in columns)} "
        "FROM read_parquet(?, union_by_name = true) "
        f"WHERE day BETWEEN ? AND ? AND {where} AND {name_test} "
        "GROUP BY 1",
        [
            [segment.file("detail") for segment in cut],
            chosen.first,
            chosen.last,
            *parameters,
            *of_names,
        ],
    )
    positions = snapshot.datasets.positions
    codes = np.array([positions[name] for name in rows["dataset_name"].to_pylist()], np.int64)
    for name in columns:
        values, is_there = sums[name]
        added = _integers(rows[name])
        if values.dtype != object and any(
            value is not None and value >= 1 << 62 for value in added
        ):
            values = values.astype(object)
        values[codes] += np.array([value or 0 for value in added], values.dtype)
        is_there[codes] |= np.array([value is not None for value in added], np.bool_)
        sums[name] = values, is_there
    return sums


def _integers(column: pa.ChunkedArray) -> list[int | None]:
    """Whole numbers, of 64 bits where they fit: those are made much faster."""
    import pyarrow as pa

    with suppress(pa.ArrowInvalid):
        return list(column.cast(pa.int64()).to_pylist())
    return [integer(value) for value in column.to_pylist()]


def named(names: Sequence[str] | None) -> tuple[str, list[object]]:
    """Return the condition that a dataset is one of some.

    A few are constants, so that other parts of files are not read.
    """
    if names is None:
        return "true", []
    if len(names) <= _FEW:
        return f"dataset_name IN ({', '.join('?' * len(names)) or 'NULL'})", list(names)
    return "dataset_name IN (SELECT unnest(?::VARCHAR[]))", [list(names)]


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
        inside, cut = snapshot.split(chosen.first, chosen.last)
        codes = np.array([snapshot.datasets.positions[name] for name in names], np.int64)
        filters: dict[str, Sequence[str]] = {"stream": chosen.streams_of_users}
        if tiers := chosen.values("site_tier"):
            filters["site_tier"] = tiers
        segments = [snapshot.datasets.segments[number] for number in inside]
        ids = [snapshot.user_tables["tier_users"][number].global_ids for number in inside]
        is_wanted = [segment.wanted_pairs(filters) for segment in segments]
        of_days = _users_of_days(snapshot, chosen, names, cut)
        counts: list[int | None] = []
        for first in range(0, len(codes), _BLOCK):
            block = codes[first : first + _BLOCK]
            # A flag for each person takes a tenth of np.unique's time.
            flags = np.zeros((len(block), snapshot.pseudonyms), np.bool_)
            for segment, global_ids, is_chosen in zip(segments, ids, is_wanted, strict=True):
                rows, users = segment.users(segment.positions[block], is_chosen)
                flags[rows, global_ids[users]] = True
            for row, parts in enumerate(of_days[first : first + _BLOCK]):
                for part in parts:
                    flags[row, part] = True
            counts += np.count_nonzero(flags, axis=1).tolist()
        return counts

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
    sums = _sums_of_datasets(snapshot, chosen, ("nacc", "job_count"))
    codes = np.flatnonzero(
        sums["job_count" if chosen.is_of_jobs else "nacc"][1] & are_chosen(snapshot, chosen)
    )
    used_names = [names[code] for code in codes]
    users = users_of_datasets(snapshot, chosen.only(*FILTERS), used_names)
    counts[codes] = [count or 0 for count in users]
    is_there[codes] = True
    return counts, is_there


def _users_of_days(
    snapshot: Snapshot, chosen: Selection, names: Sequence[str], cut: Sequence[Segment]
) -> list[list[npt.NDArray[np.int64]]]:
    """Return the users of each dataset on the days of segments that the period cuts: an
    array for each segment.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[list[npt.NDArray[np.int64]]] = [[] for _ in names]
    value_set = pa.array(names, pa.string())
    name_test, of_names = named(names)
    where, parameters = chosen.only("stream", "site_tier").where_users(("stream", "site_tier"))
    for segment in cut:
        rows = snapshot.arrow(
            f"SELECT dataset_name, user_id FROM read_parquet(?) WHERE {name_test} AND {where}",
            [segment.file("dataset_users"), *of_names, *parameters],
        )
        number = snapshot.segments.index(segment)
        ids = snapshot.user_tables["tier_users"][number].global_ids[rows["user_id"].to_numpy()]
        groups = pc.index_in(rows["dataset_name"], value_set=value_set).to_numpy()
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(len(names) + 1))
        for position in range(len(names)):
            parts[position].append(ids[order[bounds[position] : bounds[position + 1]]])
    return parts


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

_TEXTS: Final = ("stream", "site_name", "app")


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
    # Two files of each segment are decoded, side by side.
    with ThreadPoolExecutor(1) as pool:
        people = pool.submit(_users, snapshot, chosen, name)
        rows = _rows(snapshot, chosen, name, "detail", ("day", *_TEXTS, *SUMS))
        users, everyone = people.result()
    last = last_access(snapshot, name)
    if not rows:
        return DatasetUse((None,) * len(SUMS), [], [], [], users, everyone, last)
    table = _together([part for _, part in rows])
    (streams, of_streams), (sites, of_sites), (apps, of_apps) = (
        _coded(table[name]) for name in _TEXTS
    )
    values = [_values(table[name]) for name in SUMS]
    buckets = chosen.buckets()
    starts = np.array([day_number(day) for day in buckets], np.int32)
    at = np.searchsorted(starts, table["day"].cast("int32").to_numpy(), side="right") - 1
    ((_, *totals),) = _sums_by(np.zeros(len(at), np.uint8), values)
    count = len(streams)
    by_day = [
        (buckets[key // count], streams[key % count], *sums)
        for key, *sums in _sums_by(at * count + of_streams, values)
    ]
    by_site = sorted(
        ((sites[key], *sums) for key, *sums in _sums_by(of_sites, values)), key=_largest
    )
    by_app = sorted(((apps[key], *sums) for key, *sums in _sums_by(of_apps, values)), key=_largest)
    return DatasetUse(tuple(totals), sorted(by_day), by_site, by_app, users, everyone, last)


def _coded(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[Any]]:
    """Return the names of a column whose chunks have the same dictionary, and the
    number of each row's name.
    """
    combined = column.combine_chunks()
    return combined.dictionary.to_pylist(), combined.indices.to_numpy()


def _values(column: pa.ChunkedArray) -> Sums:
    """Return a column's values, 0 for null, and which are there; Python's numbers where
    sums pass 64 bits.
    """
    import pyarrow.compute as pc

    is_there = pc.is_valid(column).to_numpy()
    if (pc.sum(column.cast("float64", safe=False)).as_py() or 0) >= SAFE:
        return np.array([int(value or 0) for value in column.to_pylist()], dtype=object), is_there
    return pc.fill_null(column, 0).to_numpy(), is_there


def _sums_by(keys: npt.NDArray[Any], values: Sequence[Sums]) -> list[tuple[Any, ...]]:
    """(key, sums …) of each key of some rows; None where no row of it has a value.
    ``keys``: one for each row.
    """
    # Short numbers are sorted in one pass.
    short = keys.astype(np.min_scalar_type(int(keys.max())))
    order = np.argsort(short, kind="stable")
    ordered = short[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    columns: list[list[Any]] = [ordered[starts].tolist()]
    for column, is_there in values:
        sums = np.add.reduceat(column[order], starts).tolist()
        has_any = np.logical_or.reduceat(is_there[order], starts)
        columns.append(
            [value if any_there else None for value, any_there in zip(sums, has_any, strict=True)]
        )
    return list(zip(*columns, strict=True))


def _rows(
    snapshot: Snapshot, chosen: Selection, name: str, file: str, columns: Sequence[str]
) -> list[tuple[int, pa.Table]]:
    """(number of a segment, its rows of the dataset in the selection's days and
    stream), of segments that have any.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    code = snapshot.datasets.positions.get(name)
    if code is None:
        return []
    streams = chosen.streams_of_users if file == "dataset_users" else None
    if streams is None:
        streams = chosen.values("stream") or None
    tables = []
    for number, stored in enumerate(snapshot.segments):
        segment = snapshot.datasets.segments[number]
        position = int(segment.positions[code])
        if position < 0 or stored.days[0] > chosen.last or stored.days[-1] < chosen.first:
            continue
        rows = segment.lookups[file].rows(position, name, columns)
        if stored.days[0] < chosen.first or stored.days[-1] > chosen.last:
            first, last = pa.scalar(chosen.first), pa.scalar(chosen.last)
            rows = rows.filter(
                pc.and_(pc.greater_equal(rows["day"], first), pc.less_equal(rows["day"], last))
            )
        if streams is not None:
            rows = rows.filter(
                pc.is_in(
                    rows["stream"].cast(pa.string()), value_set=pa.array(streams, pa.string())
                )
            )
        if rows.num_rows:
            tables.append((number, rows))
    return tables


def _together(parts: list[pa.Table]) -> pa.Table:
    """Rows of several segments, whose sums may be wider in some; each column of texts
    has one dictionary.
    """
    import pyarrow as pa

    wide = {
        name
        for part in parts
        for name in SUMS
        if pa.types.is_decimal(part.schema.field(name).type)
    }
    schema = pa.schema(
        [
            pa.field(field.name, pa.decimal128(38, 0) if field.name in wide else field.type)
            for field in parts[0].schema
        ]
    )
    return pa.concat_tables([part.cast(schema) for part in parts]).unify_dictionaries()


def last_access(snapshot: Snapshot, name: str) -> date | None:
    """Return the last stored day on which an access or a job read the dataset; None
    where it was on none.
    """
    code = snapshot.datasets.positions.get(name)
    day = NULL if code is None else snapshot.datasets.last_days[code]
    return None if day == NULL else to_day(day)


def last_at_sites(snapshot: Snapshot, name: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read the dataset at each site."""

    def make() -> dict[str, date]:
        every = Selection(snapshot.days[0], snapshot.days[-1])
        last: dict[str, date] = {}
        for _, rows in _rows(
            snapshot, every, name, "detail", ("day", "site_name", "nacc", "job_count")
        ):
            # Decimals, which larger sums are, do not compare with integers.
            nacc, jobs = (
                pc.fill_null(rows[column].cast("float64", safe=False), 0)
                for column in ("nacc", "job_count")
            )
            read = rows.filter(pc.or_(pc.greater(nacc, 0), pc.greater(jobs, 0)))
            for site, day in zip(
                read["site_name"].to_pylist(), read["day"].to_pylist(), strict=True
            ):
                last[site] = max(day, last.get(site, day))
        return last

    import pyarrow.compute as pc

    return snapshot.cached(("last_at_sites", name), make)


def _users(
    snapshot: Snapshot, chosen: Selection, name: str
) -> tuple[list[int | None], int | None]:
    """Return the distinct users of each step of the period, and of all of it."""
    buckets = chosen.buckets()
    starts = np.array([day_number(day) for day in buckets], np.int32)
    # A person in a step is one number.
    cells = [np.zeros(0, np.int64)]
    for number, rows in _rows(
        snapshot, chosen, name, "dataset_users", ("day", "stream", "user_id")
    ):
        ids = snapshot.user_tables["tier_users"][number].global_ids[rows["user_id"].to_numpy()]
        at = np.searchsorted(starts, rows["day"].cast("int32").to_numpy(), side="right") - 1
        cells.append(np.unique(at.astype(np.int64) * snapshot.pseudonyms + ids))
    both = np.unique(np.concatenate(cells))
    per_step = np.bincount(both // max(1, snapshot.pseudonyms), minlength=len(buckets))
    is_mixed = mixed_steps(snapshot, chosen, buckets)
    counts = [
        None if mixed else int(count) for mixed, count in zip(is_mixed, per_step, strict=True)
    ]
    has_two_keys = len(snapshot.find_keys(chosen.first, chosen.last)) > 1
    return counts, None if has_two_keys else len(np.unique(both % max(1, snapshot.pseudonyms)))


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
