"""From the partials of many days to sums and exact distinct counts by any keys. Knows
no Spark and no store.

Texts are numbers here: the dictionaries of Parquet are unified once, filters and
derived keys are evaluated on their values, and each row is a few integers. Seconds are
summed as whole milliseconds, so a result does not depend on the order of days and rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
from msgspec.structs import replace

from cmsspark.base.names import DERIVED
from cmsspark.counting.packing import (
    Codes,
    Unpack,
    distinct,
    find_starts,
    joined,
    pack,
    rank_values,
)
from cmsspark.counting.sums import Nullable, find_runs, in_seconds, sum_by_key

#: Keys that partials have. The keys in ``DERIVED`` are computed from one of them.
STORED: Final = ("stream", "dataset_name", "site_name", "app")
KEYS: Final = ("day", *STORED, *DERIVED)
SUMS: Final = ("nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time")
#: The column whose distinct values each measure counts.
COUNTS: Final[Mapping[str, str]] = {
    "distinct_users": "user",
    "day_count": "day",
    "dataset_count": "dataset_name",
    "site_count": "site_name",
}
MEASURES: Final = ("nacc", "distinct_users", *SUMS[1:], "day_count", "dataset_count", "site_count")
_SECONDS: Final = ("cpu_time", "wc_time")


class Rollup(msgspec.Struct, frozen=True):
    """A query on partials: one row for each combination of ``keys`` that has an access.

    ``filters``: column → patterns, of which one must match. ``*`` is any text, ``?``
    any character. Null matches none.
    """

    keys: tuple[str, ...]
    measures: tuple[str, ...] = MEASURES
    filters: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The columns of partials that the query needs, in the order of partials."""
        needed = {
            *self.keys,
            *self.filters,
            *self.measures,
            *(COUNTS.get(name, name) for name in self.measures),
        }
        # At least one column: without columns a table does not know its number of rows.
        needed |= {"nacc", *(DERIVED[name].source for name in needed & DERIVED.keys())}
        return [name for name in (*STORED, "user", *SUMS) if name in needed]

    @property
    def grouped(self) -> tuple[str, ...]:
        """The keys without those that are derived from another key of the query."""
        return tuple(
            name
            for name in self.keys
            if name not in DERIVED or DERIVED[name].source not in self.keys
        )

    @property
    def counts(self) -> tuple[str, ...]:
        """The distinct counts among the measures."""
        return tuple(name for name in self.measures if name in COUNTS)

    @property
    def sums(self) -> tuple[str, ...]:
        """The sums among the measures."""
        return tuple(name for name in self.measures if name in SUMS)


class Texts:
    """The distinct values of a column, numbered in the order of their arrival; 0 is null."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {None: 0}

    def codes(self, values: Sequence[Any]) -> Codes:
        """Return the numbers of ``values``."""
        numbers = self._numbers
        return np.fromiter(
            (numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values)
        )

    @property
    def values(self) -> list[Any]:
        """The values, by number."""
        return list(self._numbers)


class _DistinctPairs(msgspec.Struct, frozen=True):
    """Distinct pairs (number of a group, number of a value), in the order of groups."""

    groups: Codes
    values: Codes


class _Batch(msgspec.Struct, frozen=True):
    """A reduced batch: the sums and distinct values of each group; ``unpack`` turns
    group numbers into key numbers.
    """

    unpack: Unpack
    sums: pl.DataFrame
    distinct: Mapping[str, _DistinctPairs]


class _Filter:
    """Keeps rows whose texts match. It tests the values of the dictionaries, not each row."""

    def __init__(self, filters: Mapping[str, tuple[str, ...]]) -> None:
        self._filters = filters
        self._matches: dict[str, dict[Any, bool]] = {name: {None: False} for name in filters}

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that match all filters. Its texts are dictionary arrays."""
        if not self._filters:
            return table
        is_match = np.ones(table.num_rows, np.bool_)
        for name in self._filters:
            stored = DERIVED[name].source if name in DERIVED else name
            chunks = [self._of_rows(name, chunk) for chunk in table.column(stored).chunks]
            is_match &= np.concatenate(chunks) if chunks else is_match
        return table.filter(pa.array(is_match))

    def _of_rows(
        self, name: str, chunk: pa.DictionaryArray
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        is_match, rule = self._matches[name], DERIVED.get(name)
        values = chunk.dictionary.to_pylist()
        for value in values:
            if value not in is_match:
                is_match[value] = matches(
                    rule.derive(value) if rule else value, self._filters[name]
                )
        # Index -1 is null; it takes the last element.
        of_values = np.fromiter(
            (is_match[value] for value in (*values, None)), np.bool_, len(values) + 1
        )
        of_rows: np.ndarray[Any, np.dtype[np.bool_]] = of_values[_indices(chunk)]
        return of_rows


class RollupState:
    """Collects partials batch by batch and returns the rows of the rollup. It does not
    apply filters.
    """

    def __init__(self, rollup: Rollup) -> None:
        self.rollup = rollup
        self.texts: dict[str, Texts] = {}
        self._batches: list[_Batch] = []

    def add(self, batch: Sequence[tuple[date, pa.Table]]) -> None:
        """Add the partials of some days. A day may be split into several tables with
        different rows.

        Texts may be plain or dictionary arrays. Needs the columns ``rollup.columns``;
        others are ignored.
        """
        tables = [_as_dictionaries(table.select(self.rollup.columns)) for _, table in batch]
        rows = pa.concat_tables(tables).unify_dictionaries()
        codes = {name: self._codes(name, rows) for name in self.rollup.columns if name not in SUMS}
        if {"day", "day_count"} & {*self.rollup.keys, *self.rollup.measures}:
            days = self._of("day").codes([day for day, _ in batch])
            codes["day"] = np.repeat(days.astype(np.int32), [table.num_rows for table in tables])
        for name in self.rollup.grouped:
            if name in DERIVED:
                codes[name] = self._derived_codes(name)[codes[DERIVED[name].source]]
        count = rows.num_rows
        packed, unpack = pack([codes[name] for name in self.rollup.grouped], count)
        measures = {
            name: _whole_numbers(pl.Series(values=rows.column(name))) for name in self.rollup.sums
        }
        sums = _summed(pl.DataFrame({"key": packed, **measures}), self.rollup.sums)
        pairs = {}
        for name in self.rollup.counts:
            counted = codes[COUNTS[name]]
            both, split = pack([packed, counted], count)
            groups, values = split(distinct(both[counted > 0]))
            pairs[name] = _DistinctPairs(groups, values.astype(np.int32))
        self._batches.append(_Batch(unpack, sums, pairs))

    @property
    def users(self) -> list[Any]:
        """The pseudonyms in the partials, and null."""
        return self._of("user").values

    def _of(self, name: str) -> Texts:
        return self.texts.setdefault(name, Texts())

    def _codes(self, name: str, rows: pa.Table) -> Codes:
        """Return the number of each row's text in a text column."""
        column = rows.column(name)
        if column.num_chunks == 0:
            return np.zeros(0, np.int64)
        of_values = self._of(name).codes(column.chunk(0).dictionary.to_pylist())
        # Index -1 is null; it takes the last element.
        lookup = np.append(of_values, 0).astype(np.int32)
        codes: Codes = lookup[np.concatenate([_indices(chunk) for chunk in column.chunks])]
        return codes

    def _derived_codes(self, name: str) -> Codes:
        """Return the number of the derived text for each number of its source."""
        rule = DERIVED[name]
        values = [
            None if value is None else rule.derive(value) for value in self._of(rule.source).values
        ]
        return self._of(name).codes(values)

    def rows(self) -> pl.DataFrame:
        """Return the rows, sorted by their keys, with the keys and measures of the
        rollup. Without keys: one row.

        The sum of no values is null, the count of no values 0. Raises DataError (65) if
        a sum exceeds 64 bits.
        """
        batches, unpack = _aligned(self._batches, len(self.rollup.grouped))
        frames = [batch.sums for batch in batches]
        if len(frames) == 1:
            total = frames[0]
        else:
            schema = dict.fromkeys(("key", *self.rollup.sums), pl.Int64)
            total = _summed(pl.concat([pl.DataFrame(schema=schema), *frames]), self.rollup.sums)
        if total.is_empty() and not self.rollup.keys:
            total = pl.DataFrame(
                {"key": [0], **dict.fromkeys(self.rollup.sums)}, schema=total.schema
            )
        for name in self.rollup.counts:
            counts = _counted(name, [batch.distinct[name] for batch in batches])
            total = total.join(counts, on="key", how="left", validate="1:1")
            total = total.with_columns(pl.col(name).fill_null(0))
        keys = dict(zip(self.rollup.grouped, unpack(total["key"].to_numpy()), strict=True))
        for name in self.rollup.keys:
            if name not in keys:
                keys[name] = self._derived_codes(name)[keys[DERIVED[name].source]]
        values = {name: self._of(name).values for name in self.rollup.keys}
        ranks, _ = pack(
            [rank_values(values[name])[keys[name]] for name in self.rollup.keys], total.height
        )
        order = np.argsort(ranks)
        columns = []
        for name in self.rollup.keys:
            kind = pl.Date if name == "day" else pl.String
            columns.append(pl.Series(name, values[name], kind).gather(keys[name][order]))
        for name in self.rollup.measures:
            measure = total[name].gather(order)
            columns.append(_in_seconds(measure) if name in _SECONDS else measure)
        return pl.DataFrame(columns)


def roll_up(
    rollup: Rollup, batches: Iterable[Sequence[tuple[date, pa.Table]]]
) -> tuple[pl.DataFrame, RollupState]:
    """Return the rows of the rollup over all batches, and its state, whose ``users``
    are those in the partials.
    """
    (state,) = roll_all_up([rollup], batches)
    return state.rows(), state


def roll_all_up(
    rollups: Sequence[Rollup], batches: Iterable[Sequence[tuple[date, pa.Table]]]
) -> list[RollupState]:
    """Run several rollups over the same batches, which are read once, and filtered once
    for each different filter.
    """
    states = [RollupState(replace(rollup, filters={})) for rollup in rollups]
    every = [rollup.filters for rollup in rollups]
    different = [filters for number, filters in enumerate(every) if filters not in every[:number]]
    groups = [
        (
            _Filter(filters),
            [state for state, of_state in zip(states, every, strict=True) if of_state == filters],
        )
        for filters in different
    ]
    for batch in batches:
        if batch:
            tables = [(day, _as_dictionaries(table)) for day, table in batch]
            for row_filter, members in groups:
                filtered = [(day, row_filter.apply(table)) for day, table in tables]
                for state in members:
                    state.add(filtered)
    return states


def matches(value: str | None, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches all of ``value``: ``*`` is any text, ``?`` any
    character, and one that begins with ``!`` matches what the rest does not;
    case-sensitive.
    """
    return value is not None and any(
        not _pattern(pattern[1:]).fullmatch(value)
        if pattern.startswith("!")
        else _pattern(pattern).fullmatch(value)
        for pattern in patterns
    )


def is_pattern(text: str) -> bool:
    """Return whether a text has wildcards."""
    return "*" in text or "?" in text


def _pattern(text: str) -> re.Pattern[str]:
    # `re` caches compiled patterns, and the same few patterns are used again and again.
    return re.compile(
        "".join({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in text),
        re.DOTALL,
    )


def _as_dictionaries(table: pa.Table) -> pa.Table:
    for number, column in enumerate(table.schema):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            table = table.set_column(number, column.name, table.column(number).dictionary_encode())
    return table


def _indices(chunk: pa.DictionaryArray) -> Codes:
    """Return each row's index into the dictionary; -1 is null."""
    indices: Codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return indices


def _whole_numbers(column: pl.Series) -> pl.Series:
    """Return a measure as whole numbers: seconds become milliseconds."""
    return (column * 1000.0).round(0).cast(pl.Int64) if column.dtype == pl.Float64 else column


def _summed(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return the sums of each ``key``, null where all values are null. Raises DataError
    (65) if one exceeds 64 bits.
    """
    keys = rows["key"].to_numpy()
    runs = find_runs(keys)
    columns = {name: _nullable(rows[name]) for name in names}
    sums = sum_by_key(runs, columns, "look for absurd sizes with cmsspark diff, day by day")
    series = [
        pl.Series(name, column.values).set(pl.Series(~column.is_valid), None)
        if column.is_valid is not None
        else pl.Series(name, column.values)
        for name, column in sums.items()
    ]
    return pl.DataFrame([pl.Series("key", keys[runs.first]), *series])


def _nullable(column: pl.Series) -> Nullable:
    if not column.null_count():
        return Nullable(column.to_numpy())
    return Nullable(column.fill_null(0).to_numpy(), column.is_not_null().to_numpy())


def _aligned(batches: Sequence[_Batch], keys: int) -> tuple[list[_Batch], Unpack]:
    """Return the batches with the same group numbers in all of them, and ``unpack`` for
    these numbers.
    """
    if len(batches) == 1:
        return list(batches), batches[0].unpack
    groups = [batch.sums["key"].to_numpy() for batch in batches]
    unpacked = [batch.unpack(part) for batch, part in zip(batches, groups, strict=True)]
    columns = [joined([parts[key] for parts in unpacked]) for key in range(keys)]
    packed, unpack = pack(columns, sum(map(len, groups)))
    numbers = np.split(packed, np.cumsum([len(part) for part in groups[:-1]], dtype=np.int64))
    aligned = []
    for batch, before, after in zip(batches, groups, numbers, strict=False):
        order = np.argsort(before)
        sorted_before, sorted_after = before[order], after[order]
        pairs = {
            name: _DistinctPairs(
                sorted_after[np.searchsorted(sorted_before, of_batch.groups)], of_batch.values
            )
            for name, of_batch in batch.distinct.items()
        }
        aligned.append(_Batch(unpack, batch.sums.with_columns(pl.Series("key", after)), pairs))
    return aligned, unpack


def _counted(name: str, parts: Sequence[_DistinctPairs]) -> pl.DataFrame:
    """Return the number of distinct values of each group."""
    groups = joined([part.groups for part in parts])
    if len(parts) > 1:
        both, split = pack([groups, joined([part.values for part in parts])], len(groups))
        groups, _ = split(distinct(both))
    starts = np.flatnonzero(find_starts(groups))
    counts = np.diff(np.append(starts, len(groups)))
    return pl.DataFrame(
        {"key": groups[starts], name: counts}, schema=dict.fromkeys(("key", name), pl.Int64)
    )


def _in_seconds(milliseconds: pl.Series) -> pl.Series:
    """Return seconds, divided as Spark and Python do. Polars multiplies by the
    reciprocal: the last digit differs.
    """
    values = pl.Series(milliseconds.name, in_seconds(milliseconds.fill_null(0).to_numpy()))
    return values.set(milliseconds.is_null(), None)
