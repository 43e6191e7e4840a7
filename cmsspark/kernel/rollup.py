"""From the partials of many days to sums and exact distinct counts of any keys. Knows no Spark and no store.

Texts are numbers here: Parquet's dictionaries are unified once, filters and derived keys are worked out on their
values, and each row is a few integers. Seconds are summed as whole milliseconds, so that neither the order of days
nor of rows shows in a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from cmsspark.kernel.packing import Codes, Unpack, distinct, joined, pack, ranks_of, starts_of
from cmsspark.kernel.sums import Nullable, runs_of, sum_by_key
from cmsspark.names import DERIVED

#: Keys that partials have; ``DERIVED`` follow from one of them.
STORED: Final = ("stream", "dataset_name", "site_name", "app")
KEYS: Final = ("day", *STORED, *DERIVED)
SUMS: Final = ("nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time")
#: Distinct counts: of which column.
COUNTS: Final[Mapping[str, str]] = {
    "distinct_users": "user",
    "day_count": "day",
    "dataset_count": "dataset_name",
    "site_count": "site_name",
}
MEASURES: Final = ("nacc", "distinct_users", *SUMS[1:], "day_count", "dataset_count", "site_count")
_SECONDS: Final = ("cpu_time", "wc_time")


@dataclass(frozen=True)
class Rollup:
    """What is asked of the partials: one row for each combination of ``keys`` that has an access.

    ``filters``: column → patterns, of which one must fit; ``*`` is any text, ``?`` any letter. A null fits none.
    """

    keys: tuple[str, ...]
    measures: tuple[str, ...] = MEASURES
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The columns of partials that are needed, in their order."""
        wanted = {*self.keys, *self.filters, *self.measures, *(COUNTS.get(name, name) for name in self.measures)}
        # One column at least, as without any a table does not know how many rows it has.
        wanted |= {"nacc", *(DERIVED[name].source for name in wanted & DERIVED.keys())}
        return [name for name in (*STORED, "user", *SUMS) if name in wanted]

    @property
    def grouped(self) -> tuple[str, ...]:
        """The keys that tell rows apart: not those that follow from another one of them."""
        return tuple(name for name in self.keys if name not in DERIVED or DERIVED[name].source not in self.keys)

    @property
    def counts(self) -> tuple[str, ...]:
        """The distinct counts among the measures."""
        return tuple(name for name in self.measures if name in COUNTS)

    @property
    def sums(self) -> tuple[str, ...]:
        """The sums among the measures."""
        return tuple(name for name in self.measures if name in SUMS)


class Texts:
    """The values of a column, numbered as they come; 0 is null."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {None: 0}

    def codes(self, values: Sequence[Any]) -> Codes:
        """The numbers of ``values``."""
        numbers = self._numbers
        return np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))

    @property
    def values(self) -> list[Any]:
        """The values by their number."""
        return list(self._numbers)


@dataclass(frozen=True)
class _Seen:
    """Distinct pairs of a group's number and a value's, in the order of groups."""

    groups: Codes
    values: Codes


@dataclass(frozen=True)
class _Batch:
    """What a batch comes to: the sums of each group, what was seen in it, and the keys' numbers from the group's."""

    unpack: Unpack
    sums: pl.DataFrame
    seen: Mapping[str, _Seen]


class _Filter:
    """Keeps rows whose texts fit: asked of each dictionary's values, not of each row."""

    def __init__(self, filters: Mapping[str, tuple[str, ...]]) -> None:
        self._filters = filters
        self._known: dict[str, dict[Any, bool]] = {name: {None: False} for name in filters}

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of a table, its texts dictionaries, that fit all filters."""
        if not self._filters:
            return table
        fits = np.ones(table.num_rows, np.bool_)
        for name in self._filters:
            stored = DERIVED[name].source if name in DERIVED else name
            of_rows = [self._fits(name, chunk) for chunk in table.column(stored).chunks]
            fits &= np.concatenate(of_rows) if of_rows else fits
        return table.filter(pa.array(fits))

    def _fits(self, name: str, chunk: pa.DictionaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        known, derived = self._known[name], DERIVED.get(name)
        values = chunk.dictionary.to_pylist()
        for value in values:
            if value not in known:
                known[value] = matches(derived.of(value) if derived else value, self._filters[name])
        # -1 stands for null, and takes the last.
        of_values = np.fromiter((known[value] for value in (*values, None)), np.bool_, len(values) + 1)
        found: np.ndarray[Any, np.dtype[np.bool_]] = of_values[_indices(chunk)]
        return found


class Fold:
    """Takes in partials, batch by batch, and gives the rollup's rows. Filters are not its business."""

    def __init__(self, asked: Rollup) -> None:
        self.asked = asked
        self.texts: dict[str, Texts] = {}
        self._batches: list[_Batch] = []

    def add(self, batch: Sequence[tuple[date, pa.Table]]) -> None:
        """Take in the partials of some days; a day may come in several tables, never twice with the same rows.

        Texts may be plain or dictionaries. The columns are those of ``asked.columns``, others are not looked at.
        """
        tables = [_as_dictionaries(table.select(self.asked.columns)) for _, table in batch]
        rows = pa.concat_tables(tables).unify_dictionaries()
        codes = {name: self._codes(name, rows) for name in self.asked.columns if name not in SUMS}
        if {"day", "day_count"} & {*self.asked.keys, *self.asked.measures}:
            days = self._of("day").codes([day for day, _ in batch])
            codes["day"] = np.repeat(days.astype(np.int32), [table.num_rows for table in tables])
        for name in self.asked.grouped:
            if name in DERIVED:
                codes[name] = self._derived(name)[codes[DERIVED[name].source]]
        self._take_in(codes, rows)

    @property
    def users(self) -> list[Any]:
        """The pseudonyms that were met, and null."""
        return self._of("user").values

    def _of(self, name: str) -> Texts:
        return self.texts.setdefault(name, Texts())

    def _codes(self, name: str, rows: pa.Table) -> Codes:
        """Each row's number of a text column."""
        column = rows.column(name)
        if column.num_chunks == 0:
            return np.zeros(0, np.int64)
        known = self._of(name).codes(column.chunk(0).dictionary.to_pylist())
        # -1 stands for null, and takes the last.
        lookup = np.append(known, 0).astype(np.int32)
        found: Codes = lookup[np.concatenate([_indices(chunk) for chunk in column.chunks])]
        return found

    def _derived(self, name: str) -> Codes:
        """The number of a derived text by that of the text that it follows from."""
        derived = DERIVED[name]
        values = [None if value is None else derived.of(value) for value in self._of(derived.source).values]
        return self._of(name).codes(values)

    def _take_in(self, codes: Mapping[str, Codes], rows: pa.Table) -> None:
        """Reduce a batch to its groups, and to the distinct values of each group."""
        count = rows.num_rows
        packed, unpack = pack([codes[name] for name in self.asked.grouped], count)
        measures = {name: _whole(pl.Series(values=rows.column(name))) for name in self.asked.sums}
        sums = _summed(pl.DataFrame({"key": packed, **measures}), self.asked.sums)
        seen = {}
        for name in self.asked.counts:
            counted = codes[COUNTS[name]]
            both, split = pack([packed, counted], count)
            groups, values = split(distinct(both[counted > 0]))
            seen[name] = _Seen(groups, values.astype(np.int32))
        self._batches.append(_Batch(unpack, sums, seen))

    def rows(self) -> pl.DataFrame:
        """The rows, sorted by their keys: keys and measures, as asked for; without keys one row, also of nothing.

        A sum of which nothing is known is null, a count of nothing 0. Raises DataError (65) where a sum is beyond
        what 64 bits hold.
        """
        batches, unpack = _aligned(self._batches, len(self.asked.grouped))
        total = _together([batch.sums for batch in batches], self.asked.sums)
        if total.is_empty() and not self.asked.keys:
            total = pl.DataFrame({"key": [0], **dict.fromkeys(self.asked.sums)}, schema=total.schema)
        for name in self.asked.counts:
            counts = _counted(name, [batch.seen[name] for batch in batches])
            total = total.join(counts, on="key", how="left", validate="1:1")
            total = total.with_columns(pl.col(name).fill_null(0))
        keys = dict(zip(self.asked.grouped, unpack(total["key"].to_numpy()), strict=True))
        return self._worded(total, keys)

    def _worded(self, total: pl.DataFrame, codes: dict[str, Codes]) -> pl.DataFrame:
        """Texts and days instead of their numbers, seconds instead of milliseconds; sorted."""
        for name in self.asked.keys:
            if name not in codes:
                codes[name] = self._derived(name)[codes[DERIVED[name].source]]
        values = {name: self._of(name).values for name in self.asked.keys}
        ranks, _ = pack([ranks_of(values[name])[codes[name]] for name in self.asked.keys], total.height)
        order = np.argsort(ranks)
        columns = []
        for name in self.asked.keys:
            kind = pl.Date if name == "day" else pl.String
            columns.append(pl.Series(name, values[name], kind).gather(codes[name][order]))
        for name in self.asked.measures:
            measure = total[name].gather(order)
            columns.append(_in_seconds(measure) if name in _SECONDS else measure)
        return pl.DataFrame(columns)


def roll_up(asked: Rollup, batches: Iterable[Sequence[tuple[date, pa.Table]]]) -> tuple[pl.DataFrame, Fold]:
    """The rollup's rows over all batches, and what was folded (its ``users`` are those that were met)."""
    (fold,) = roll_all_up([asked], batches)
    return fold.rows(), fold


def roll_all_up(asked: Sequence[Rollup], batches: Iterable[Sequence[tuple[date, pa.Table]]]) -> list[Fold]:
    """Several rollups with the same filters over the same batches, which are read and filtered once."""
    assert all(one.filters == asked[0].filters for one in asked)
    chosen = _Filter(asked[0].filters)
    folds = [Fold(replace(one, filters={})) for one in asked]
    for batch in batches:
        if batch:
            fitting = [(day, chosen.of(_as_dictionaries(table))) for day, table in batch]
            for fold in folds:
                fold.add(fitting)
    return folds


def matches(value: str | None, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits the whole of ``value``: ``*`` is any text, ``?`` any letter, case counts."""
    return value is not None and any(_pattern(pattern).fullmatch(value) for pattern in patterns)


def is_pattern(text: str) -> bool:
    """Whether a text stands for others than itself."""
    return "*" in text or "?" in text


def _pattern(text: str) -> re.Pattern[str]:
    # `re` keeps what it compiled: the same few patterns are asked for again and again.
    return re.compile("".join({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in text), re.DOTALL)


def _as_dictionaries(table: pa.Table) -> pa.Table:
    for number, column in enumerate(table.schema):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            table = table.set_column(number, column.name, table.column(number).dictionary_encode())
    return table


def _indices(chunk: pa.DictionaryArray) -> Codes:
    """Each row's place in the dictionary; -1 is null."""
    found: Codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return found


def _whole(column: pl.Series) -> pl.Series:
    """A measure as whole numbers: seconds in milliseconds."""
    return (column * 1000.0).round(0).cast(pl.Int64) if column.dtype == pl.Float64 else column


def _summed(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The sums of each ``key``, null where nothing is known. Raises DataError (65) for one beyond 64 bits."""
    keys = rows["key"].to_numpy()
    runs = runs_of(keys)
    columns = {name: _nullable(rows[name]) for name in names}
    sums = sum_by_key(runs, columns, "look for absurd sizes with cmsspark diff, day by day")
    found = [
        pl.Series(name, one.values).set(pl.Series(~one.known), None)
        if one.known is not None
        else pl.Series(name, one.values)
        for name, one in sums.items()
    ]
    return pl.DataFrame([pl.Series("key", keys[runs.first]), *found])


def _nullable(column: pl.Series) -> Nullable:
    if not column.null_count():
        return Nullable(column.to_numpy())
    return Nullable(column.fill_null(0).to_numpy(), column.is_not_null().to_numpy())


def _together(frames: Sequence[pl.DataFrame], names: Sequence[str]) -> pl.DataFrame:
    """The sums of all batches."""
    if len(frames) == 1:
        return frames[0]
    schema = dict.fromkeys(("key", *names), pl.Int64)
    return _summed(pl.concat([pl.DataFrame(schema=schema), *frames]), names)


def _aligned(batches: Sequence[_Batch], keys: int) -> tuple[list[_Batch], Unpack]:
    """The batches with one number for a group in all of them, and the keys' numbers from that."""
    if len(batches) == 1:
        return list(batches), batches[0].unpack
    groups = [batch.sums["key"].to_numpy() for batch in batches]
    unpacked = [batch.unpack(part) for batch, part in zip(batches, groups, strict=True)]
    columns = [joined([parts[place] for parts in unpacked]) for place in range(keys)]
    packed, unpack = pack(columns, sum(map(len, groups)))
    numbers = np.split(packed, np.cumsum([len(part) for part in groups[:-1]], dtype=np.int64))
    found = []
    for batch, before, now in zip(batches, groups, numbers, strict=False):
        order = np.argsort(before)
        in_order, then = before[order], now[order]
        seen = {
            name: _Seen(then[np.searchsorted(in_order, one.groups)], one.values) for name, one in batch.seen.items()
        }
        found.append(_Batch(unpack, batch.sums.with_columns(pl.Series("key", now)), seen))
    return found, unpack


def _counted(name: str, parts: Sequence[_Seen]) -> pl.DataFrame:
    """How many distinct values each group has."""
    groups = joined([one.groups for one in parts])
    if len(parts) > 1:
        both, split = pack([groups, joined([one.values for one in parts])], len(groups))
        groups, _ = split(distinct(both))
    starts = np.flatnonzero(starts_of(groups))
    counts = np.diff(np.append(starts, len(groups)))
    return pl.DataFrame({"key": groups[starts], name: counts}, schema=dict.fromkeys(("key", name), pl.Int64))


def _in_seconds(milliseconds: pl.Series) -> pl.Series:
    """As Spark and Python divide; polars multiplies by the reciprocal, which differs in the last digit."""
    values = pl.Series(milliseconds.name, milliseconds.fill_null(0).to_numpy() / 1000.0)
    return values.set(milliseconds.is_null(), None)
