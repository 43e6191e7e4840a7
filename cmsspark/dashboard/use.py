"""Questions about use: over time, in total, by dataset. Sums come from the rollups, users from unions of sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.dashboard import user_sets
from cmsspark.dashboard.segment_build import SUMS, derived
from cmsspark.dashboard.selection import FILTERS, Selection
from cmsspark.dashboard.snapshot import Snapshot, day_number, day_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Measure → (label, unit, factor from the stored value).
MEASURES: Final[Mapping[str, tuple[str, str, float]]] = {
    "nacc": ("Accesses", "", 1),
    "users": ("Distinct users", "", 1),
    "read_bytes": ("Bytes read", "B", 1),
    "job_count": ("Jobs", "", 1),
    "job_read_bytes": ("Bytes read by jobs", "B", 1),
    "cpu_ms": ("CPU hours", "h", 1 / 3_600_000),
}
#: Measures of jobs, which are not accesses.
OF_JOBS: Final = ("job_count", "job_read_bytes")
#: Groups that a chart shows by name; the rest is one more group.
SHOWN: Final = 7
OTHER: Final = "other"
#: Names of a condition that stand in it as constants.
_FEW: Final = 500


@dataclass(frozen=True)
class Series:
    """Values over time by group: ``values[group][n]`` is the value of ``buckets[n]``, None where there is none.

    ``is_additive``: whether groups and buckets may be added up. ``note`` says why values are missing.
    """

    buckets: list[date]
    values: dict[str, list[int | None]]
    is_additive: bool = True
    note: str = ""


def totals(snapshot: Snapshot, chosen: Selection) -> dict[str, int | None]:
    """The sums of a selection, as in ``SUMS``, and its distinct users: of accesses or, where its stream is of jobs, of
    these.
    """

    def make() -> dict[str, int | None]:
        where, parameters = chosen.where(list(FILTERS))
        sums = ", ".join(f"sum({name})" for name in SUMS)
        row = snapshot.query(f"SELECT {sums} FROM cube WHERE {where}", parameters)[0]
        result: dict[str, int | None] = {name: _whole(value) for name, value in zip(SUMS, row, strict=True)}
        counted = "job_count" if chosen.is_of_jobs else "nacc"
        result[counted] = result[counted] or 0
        result["users"] = users_by(snapshot, chosen, None, whole_period=True).values.get("", [None])[0]
        return result

    return snapshot.cached(("totals", chosen), make)


def series(snapshot: Snapshot, chosen: Selection, measure: str, group: str | None) -> Series:
    """A measure over time, by one of the filters' columns or as a whole; the largest groups first, then the others."""

    def make() -> Series:
        if measure == "users":
            return users_by(snapshot, chosen, group)
        return _sums_by(snapshot, chosen, measure, group)

    return snapshot.cached(("series", chosen, measure, group), make)


def _sums_by(snapshot: Snapshot, chosen: Selection, measure: str, group: str | None) -> Series:
    where, parameters = chosen.where(list(FILTERS))
    key = group or "''"
    rows = snapshot.query(
        f"SELECT date_trunc('{chosen.step}', day)::DATE, {key}::VARCHAR, sum({measure}) FROM cube "
        f"WHERE {where} GROUP BY ALL",
        parameters,
    )
    buckets = chosen.buckets()
    position = {day: number for number, day in enumerate(buckets)}
    by_group: dict[str, list[int | None]] = {}
    for day, name, value in rows:
        if value is not None:
            by_group.setdefault(name, [None] * len(buckets))[position[day]] = _whole(value)
    if measure in ("nacc", "job_count"):
        with_zeros(snapshot, chosen, by_group)
    return Series(buckets, _with_others(by_group))


def with_zeros(snapshot: Snapshot, chosen: Selection, by_group: dict[str, list[int | None]]) -> None:
    """Write 0 where a group has no count in a step with a stored day; without one nothing is known."""
    stored = {chosen.bucket_of(day) for day in snapshot.days if chosen.first <= day <= chosen.last}
    is_stored = [bucket in stored for bucket in chosen.buckets()]
    for name, values in by_group.items():
        by_group[name] = [
            0 if value is None and there else value for value, there in zip(values, is_stored, strict=True)
        ]


def _with_others(by_group: dict[str, list[int | None]]) -> dict[str, list[int | None]]:
    ordered = sorted(by_group, key=lambda name: (-_total(by_group[name]), name))
    shown = {name: by_group[name] for name in ordered[:SHOWN]}
    rest = [by_group[name] for name in ordered[SHOWN:]]
    if rest:
        shown[OTHER] = [_added(values) for values in zip(*rest, strict=True)]
    return shown


def users_by(snapshot: Snapshot, chosen: Selection, group: str | None, *, whole_period: bool = False) -> Series:
    """Distinct users in each step of the period, or once over all of it, by group; each person once in a cell. Users of
    jobs are counted where the selection's stream is of jobs.

    Where a cell spans days of two pseudonym keys its users cannot be counted, and it is None.
    """
    buckets = [chosen.first] if whole_period else chosen.buckets()
    column = group or ""
    names = snapshot.names[column] if column else [""]
    shown = names if len(names) <= SHOWN + 1 else _largest(snapshot, chosen, column)
    columns = {name for name, _ in chosen.filters} | ({column} if column else set())
    tables = _tables_for(snapshot, columns)
    codes = codes_of_users(snapshot, chosen)
    groups = len(shown) + 1
    counter = user_sets.DistinctCounter(len(buckets) * groups, snapshot.pseudonyms)
    group_of = np.full(max(1, len(names)), groups - 1, np.int32)
    for number, name in enumerate(shown):
        group_of[names.index(name)] = number
    starts = np.array([day_number(day) for day in buckets], np.int32)
    for table in tables:
        rows = user_sets.chosen_rows(table, codes, day_number(chosen.first), day_number(chosen.last))
        at = np.searchsorted(starts, table.keys["day"][rows], side="right") - 1
        own = group_of[table.keys[column][rows]] if column else np.zeros(len(rows), np.int32)
        counter.add(table, rows, (at * groups + own).astype(np.int32))
    counts = counter.counts().reshape(len(buckets), groups)
    is_mixed = _mixed(snapshot, chosen, buckets)
    values: dict[str, list[int | None]] = {}
    for number, name in enumerate([*shown, OTHER]):
        cells = [None if mixed else int(count) for count, mixed in zip(counts[:, number], is_mixed, strict=True)]
        if name != OTHER or (len(names) > len(shown) and any(cells)):
            values[name] = cells
    note = "Users of two pseudonym keys cannot be told apart: such periods have no number." if any(is_mixed) else ""
    kept = {name: cells for name, cells in values.items() if any(cells) or len(values) == 1}
    return Series(buckets, kept, is_additive=False, note=note)


def codes_of_users(snapshot: Snapshot, chosen: Selection) -> dict[str, list[int]]:
    """Column → numbers of the values that a selection has, for sets of users."""
    codes = {name: [snapshot.code(name, value)] for name, value in chosen.filters}
    return {**codes, "stream": [snapshot.code("stream", name) for name in chosen.streams_of_users]}


def _tables_for(snapshot: Snapshot, columns: set[str]) -> Sequence[user_sets.UserTable]:
    """The smallest sets of users that have these columns."""
    if columns <= {"stream", "site_tier", "data_tier"}:
        return snapshot.user_tables["tier_users"]
    if columns <= {"stream", "campaign"}:
        return snapshot.user_tables["campaign_users"]
    if columns <= {"stream", "site_name"}:
        return snapshot.user_tables["site_users"]
    return snapshot.lists()


def _largest(snapshot: Snapshot, chosen: Selection, column: str) -> list[str]:
    where, parameters = chosen.where(list(FILTERS))
    counted = "job_count" if chosen.is_of_jobs else "nacc"
    rows = snapshot.query(
        f"SELECT {column}::VARCHAR, sum({counted}) FROM cube WHERE {where} GROUP BY 1 "
        f"ORDER BY 2 DESC NULLS LAST, 1 LIMIT {SHOWN}",
        parameters,
    )
    return [row[0] for row in rows]


def _mixed(snapshot: Snapshot, chosen: Selection, buckets: Sequence[date]) -> list[bool]:
    if len(snapshot.keys_of(chosen.first, chosen.last)) < 2:
        return [False] * len(buckets)
    ends = [*(day_of(day_number(day) - 1) for day in buckets[1:]), chosen.last]
    return [len(snapshot.keys_of(max(a, chosen.first), b)) > 1 for a, b in zip(buckets, ends, strict=True)]


@dataclass(frozen=True)
class DatasetRanking:
    """Datasets by a measure, the largest first: their numbers in the snapshot's names, and the measure.

    ``counts``: what the selection is about, accesses or jobs; None of a dataset that has only the other.
    """

    snapshot: Snapshot
    chosen: Selection
    measure: str
    codes: npt.NDArray[np.int64]
    counts: list[int | None]
    values: list[int | None]

    def __len__(self) -> int:
        return len(self.codes)

    def names(self, positions: Sequence[int] | None = None) -> list[str]:
        """The names at some positions, by default at all."""
        every = self.snapshot.names["dataset_name"]
        return [every[self.codes[n]] for n in (range(len(self)) if positions is None else positions)]

    @cached_property
    def total(self) -> int:
        """The accesses or jobs of all datasets."""
        return _total(self.counts)

    @cached_property
    def used(self) -> int:
        """The number of datasets that have accesses, or jobs where the selection is about these."""
        return sum(count is not None for count in self.counts)

    def sums(self, names: Sequence[str]) -> dict[str, list[int | None]]:
        """Column of ``SUMS`` → its values for some of the datasets."""
        sql, parameters = _dataset_rows(self.snapshot, self.chosen, SUMS, names)
        rows = {row[0]: row[1:] for row in self.snapshot.query(sql, parameters)}
        return {column: [_whole(rows[name][n]) for name in names] for n, column in enumerate(SUMS)}


def datasets(snapshot: Snapshot, chosen: Selection, measure: str) -> DatasetRanking:
    """All datasets that the selection has accesses of, or jobs where the measure or the stream is of jobs, the largest
    first.
    """

    def make() -> DatasetRanking:
        counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"
        columns = list(dict.fromkeys((counted, measure)))
        sql, parameters = _dataset_rows(snapshot, chosen, columns)
        rows = snapshot.arrow(sql, parameters)
        codes = _enum_codes(rows.column(0), snapshot.names["dataset_name"])
        counts = _integers(rows.column(1))
        values = _integers(rows.column(len(columns)))
        there = [n for n, both in enumerate(zip(counts, values, strict=True)) if both != (None, None)]
        # Names are in order, so their numbers decide between equal values.
        order = sorted(there, key=lambda n: (values[n] is None, -(values[n] or 0), codes[n]))
        return DatasetRanking(
            snapshot, chosen, measure, codes[order], [counts[n] for n in order], [values[n] for n in order]
        )

    return snapshot.cached(("datasets", chosen, measure), make)


def _enum_codes(column: pa.ChunkedArray, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """The numbers of names in a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return np.asarray(pc.index_in(column, value_set=pa.array(names, pa.string())).to_numpy(), np.int64)
    codes = [
        pc.index_in(chunk.dictionary, value_set=pa.array(names, pa.string())).to_numpy()[chunk.indices.to_numpy()]
        for chunk in column.chunks
    ]
    return np.concatenate(codes).astype(np.int64) if codes else np.zeros(0, np.int64)


def _integers(column: pa.ChunkedArray) -> list[int | None]:
    """Whole numbers, of 64 bits where they fit: those are made much faster."""
    import pyarrow as pa

    with suppress(pa.ArrowInvalid):
        return list(column.cast(pa.int64()).to_pylist())
    return [_whole(value) for value in column.to_pylist()]


def _dataset_rows(
    snapshot: Snapshot, chosen: Selection, columns: Sequence[str], names: Sequence[str] | None = None
) -> tuple[str, list[object]]:
    """SQL for sums of each dataset, of some or all: whole segments from memory, days of cut segments from files."""
    inside, cut = snapshot.split(chosen.first, chosen.last)
    where, parameters = chosen.where(("stream", "site_tier"), days_too=False)
    facts, of_facts = chosen.where(("data_tier", "campaign"), days_too=False)
    numbers = ", ".join(map(str, inside)) or "-1"
    plain, sums = ", ".join(columns), ", ".join(f"sum({name}) AS {name}" for name in columns)
    own, of_names = _named(names)
    facts, of_facts = ("true", []) if names is not None else (facts, of_facts)
    # As numbers of the type: a comparison with texts would make a text of every row.
    known = "dataset_name IN (SELECT unnest(?::VARCHAR[]::dataset_name_enum[]))" if names is not None else "true"
    parts = [f"SELECT dataset_name, {plain} FROM datasets WHERE segment IN ({numbers}) AND {where} AND {known}"]
    values: list[object] = [*parameters, *([list(names)] if names is not None else [])]
    if cut:
        edge = where.replace("site_tier", derived("site_tier"))
        parts.append(
            f"SELECT dataset_name::dataset_name_enum AS dataset_name, {plain} "
            f"FROM (SELECT dataset_name, {sums} FROM read_parquet(?, union_by_name = true) "
            f"WHERE day BETWEEN ? AND ? AND {edge} AND {own} GROUP BY 1)"
        )
        values += [[one.file("detail") for one in cut], chosen.first, chosen.last, *parameters, *of_names]
    sql = f"SELECT dataset_name, {sums} FROM ({' UNION ALL '.join(parts)}) GROUP BY 1"
    if of_facts:
        sql = f"SELECT one.* FROM ({sql}) one JOIN dataset_facts USING (dataset_name) WHERE {facts}"
        values += of_facts
    return sql, values


def _named(names: Sequence[str] | None) -> tuple[str, list[object]]:
    """The condition that a dataset is one of some. A few are constants, so that other parts of files are not read."""
    if names is None:
        return "true", []
    if len(names) <= _FEW:
        return f"dataset_name IN ({', '.join('?' * len(names)) or 'NULL'})", list(names)
    return "dataset_name IN (SELECT unnest(?::VARCHAR[]))", [list(names)]


def users_of_datasets(snapshot: Snapshot, chosen: Selection, names: Sequence[str]) -> list[int | None]:
    """The distinct users of each dataset in the selection, each person once."""

    def make() -> list[int | None]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(snapshot.keys_of(chosen.first, chosen.last)) > 1:
            return [None] * len(names)
        wanted = pa.array(names, pa.string())
        own, of_names = _named(names)
        counter = user_sets.DistinctCounter(len(names), snapshot.pseudonyms)
        for number, segment in enumerate(snapshot.segments):
            if segment.days[0] > chosen.last or segment.days[-1] < chosen.first:
                continue
            is_whole = chosen.first <= segment.days[0] and segment.days[-1] <= chosen.last
            columns = ("stream", "site_tier")
            where, parameters = chosen.where_users(columns, days_too=not is_whole)
            file = "dataset_users" if not is_whole else "dataset_totals_users"
            if is_whole and not any(chosen.value(name) for name in columns):
                file, where, parameters = "dataset_people", "true", []
            rows = snapshot.arrow(
                f"SELECT dataset_name, user_id FROM read_parquet(?) WHERE {own} AND {where}",
                [segment.file(file), *of_names, *parameters],
            )
            table = user_sets.of_rows(rows, snapshot.user_tables["tier_users"][number].global_ids)
            groups = pc.index_in(rows["dataset_name"], value_set=wanted).to_numpy().astype(np.int32)
            counter.add(table, np.arange(len(groups)), groups)
        return [int(count) for count in counter.counts()]

    return snapshot.cached(("users_of_datasets", chosen, tuple(names)), make)


def concentration(ranking: DatasetRanking) -> list[tuple[int, int, float]]:
    """(N, sum of the N largest datasets, its share of the sum of all), for N of 1, 2, 5, 10, 20, 50 … and all."""
    values = sorted((value for value in ranking.values if value), reverse=True)
    total = sum(values)
    if not total:
        return []
    numbers = [base * 10**power for power in range(7) for base in (1, 2, 5)]
    chosen = [number for number in numbers if number < len(values)] + [len(values)]
    result, before, done = [], 0, 0
    for number in chosen:
        done += sum(values[before:number])
        before = number
        result.append((number, done, done / total))
    return result


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _total(values: Sequence[int | None]) -> int:
    return sum(value for value in values if value is not None)


def _added(values: Sequence[int | None]) -> int | None:
    there = [value for value in values if value is not None]
    return sum(there) if there else None
