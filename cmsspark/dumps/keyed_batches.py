"""Packed rows in Spark: tasks make keyed rows, an exchange brings those of one key together, and a task merges them.

The classes run in Python workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import buffers

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cmsspark.dumps.keyed_rows import KeyedRows

#: ``part`` decides on the partition: a number for each key.
SCHEMA: Final = "part int, key int, what string, packed binary"
#: Merges the rows of one key.
Merge = Callable[[int, "list[KeyedRows]"], "Iterator[KeyedRows]"]


def partition_numbers(count: int) -> list[int]:
    """Return numbers that Spark's hash partitioning spreads over ``count`` partitions, one in each."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(_murmur3(number) % count, number)
        number += 1
    return [found[partition] for partition in range(count)]


def _murmur3(number: int) -> int:
    """Spark's hash of an int that is not negative: Murmur3 with the seed 42, signed."""
    mask = 0xFFFFFFFF
    mixed = number * 0xCC9E2D51 & mask
    mixed = (mixed << 15 | mixed >> 17) & mask
    found = 42 ^ (mixed * 0x1B873593 & mask)
    found = (found << 13 | found >> 19) & mask
    found = (found * 5 + 0xE6546B64) & mask
    found ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        found = (found ^ found >> shift) * factor & mask
    return found - (1 << 32) if found >> 31 else found


def merged(rows: DataFrame, keys: int, merge: Merge) -> DataFrame:
    """Return what ``merge`` makes of the rows of each key: one exchange."""
    return rows.repartition(keys, "part").mapInArrow(MergeKeys(merge, partition_numbers(keys)), SCHEMA)


def packed_batch(part: int, key: int, what: str, packed: bytes) -> pa.RecordBatch:
    """Return one row as a batch of :data:`SCHEMA`."""
    import numpy as np
    import pyarrow as pa

    numbers: list[npt.NDArray[Any]] = [np.array([part], np.int32), np.array([key], np.int32)]
    columns = [*map(buffers.from_numpy, numbers), buffers.array([what], "string"), buffers.binary([packed])]
    return pa.RecordBatch.from_arrays(columns, ["part", "key", "what", "packed"])


@dataclass(frozen=True)
class PackRows:
    """Keyed rows of a table, packed."""

    mapper: Callable[[Iterable[pa.Table]], Iterator[KeyedRows]]
    to_partition: Sequence[int]

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        return packed_rows(self.mapper(tables), self.to_partition)


@dataclass(frozen=True)
class MergeKeys:
    """Merges the rows of each key."""

    merge: Merge
    to_partition: Sequence[int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        by_key = rows_by_key(batches)
        while by_key:
            key, found = by_key.popitem()
            yield from packed_rows(self.merge(key, found), self.to_partition)


@dataclass(frozen=True)
class MergeKinds:
    """Merges rows of some kinds, and passes all others."""

    merges: Mapping[str, Callable[[int, Sequence[KeyedRows]], Iterable[KeyedRows]]] = field(default_factory=dict)

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        by_kind: dict[str, list[KeyedRows]] = defaultdict(list)
        for one in rows:
            if one.what in self.merges:
                by_kind[one.what].append(one)
            else:
                yield one
        for what, some in by_kind.items():
            yield from self.merges[what](key, some)


def rows_by_key(batches: Iterable[pa.RecordBatch]) -> dict[int, list[KeyedRows]]:
    """Return the rows of batches of :data:`SCHEMA`."""
    from cmsspark.dumps.keyed_rows import unpacked

    by_key: dict[int, list[KeyedRows]] = defaultdict(list)
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("key", "what", "packed")]
        for key, what, packed in zip(*columns, strict=True):
            by_key[key].append(unpacked(key, what, packed))
    return by_key


def packed_rows(rows: Iterable[KeyedRows], to_partition: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield keyed rows as batches of :data:`SCHEMA`."""
    for one in rows:
        yield packed_batch(to_partition[one.key], one.key, one.what, one.packed())
