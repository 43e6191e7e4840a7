"""A job on dumps in Spark: the tasks read, count and merge with the kernel, and the driver gets the frames of the job.

Two queries at most. The first collects the small tables. The second reads FILES, BLOCKS and the replicas, moves their
rows as packed columns to one task for each key, and moves the sums of datasets once more. The driver holds a row for
each dataset, and one for each (dataset, site, kind): no file, no block and no replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from cmsspark import buffers
from cmsspark.runners.dump_tables import TableSource
from cmsspark.runners.merge_task import decode_rows, encode_rows
from cmsspark.runners.scan import set_sizes
from cmsspark.runners.session import static_plans
from cmsspark.schemas import Table

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.kernel.dataset_contents import KnownDatasets
    from cmsspark.kernel.keyed_rows import DumpMerge, KeyedRows
    from cmsspark.kernel.presence import StorageByNode

#: Decompressed bytes of the dumps whose rows one key takes: some two million files, 100 MB of numbers.
KEY_BYTES: Final = 512 * 1024 * 1024
#: ``part`` decides on the partition: a number for each key.
_SCHEMA: Final = "part int, key int, what string, packed binary"
#: Rows that are encoded together where a table goes to Spark.
_SENT_ROWS: Final = 1_000_000


def read_frames(
    spark: SparkSession,
    sources: Mapping[str, TableSource],
    keys: int | None = None,
    storage: StorageByNode | None = None,
) -> dict[str, pl.DataFrame]:
    """Return the frames that jobs on dumps build on, from the tables by name.

    They are those of :func:`cmsspark.kernel.dump_frames.read_frames`. ``keys``: into how many parts the rows of large
    tables are divided, a power of two; None: as many as their bytes need. ``storage``: of each node, where the nodes'
    names do not say it. Raises what the tables' readers raise,
    wrapped in Spark's errors.
    """
    from cmsspark.kernel import dump_frames
    from cmsspark.kernel.dump_frames import is_small

    set_sizes(spark, sum(source.weight for source in sources.values()))
    small = {name: source for name, source in sources.items() if is_small(name)}
    pieces: dict[str, list[pa.Table]] = defaultdict(list)
    for what, packed in _collected([source.mapped(_Whole(name), _SCHEMA) for name, source in small.items()]):
        pieces[what].append(decode_rows(packed))
    frames = {
        name: dump_frames.frame_of(pieces[name] or [source.columns.empty_table()]) for name, source in small.items()
    }
    known, names = dump_frames.datasets_in(frames)
    large = {name: source for name, source in sources.items() if not is_small(name)}
    if large:
        count = keys or key_count(sum(source.weight for source in large.values()))
        frames |= _results(_merged(large, known, names.to_list(), count, storage), known, names, large.keys())
    return frames


def key_count(weight: int) -> int:
    """Return the number of keys for so many bytes: a power of two."""
    from cmsspark.kernel.keyed_rows import MOST_KEYS

    needed = -(-weight // KEY_BYTES)
    return min(MOST_KEYS, 1 << max(0, needed - 1).bit_length())


def _merged(
    large: Mapping[str, TableSource],
    known: KnownDatasets,
    names: Sequence[str],
    keys: int,
    storage: StorageByNode | None,
) -> list[KeyedRows]:
    """Read the large tables and merge their rows, by key."""
    from cmsspark.kernel import keyed_rows
    from cmsspark.kernel.catalogue import check_hash, hashes_of, name_hash

    texts = [name.encode() for name in names]
    hashes, checks = (hashes_of(texts, len(texts), one) for one in (name_hash, check_hash))
    mappers: dict[str, Callable[[Iterable[pa.Table]], Iterator[KeyedRows]]] = {
        "FILES": keyed_rows.FileMapper(known, keys),
        "BLOCKS": keyed_rows.BlockMapper(known, hashes, checks, keys),
    }
    to_partition = partition_numbers(keys)
    parts = [
        source.mapped(_Keyed(mappers.get(name) or keyed_rows.ReplicaMapper(keys), to_partition), _SCHEMA)
        for name, source in large.items()
    ]
    merge = keyed_rows.DumpMerge(len(known.ids), keys, "BLOCKS" in large, storage)

    def merged(rows: DataFrame) -> DataFrame:
        for again in (False, True) if keys > 1 and "FILES" in large else (False,):
            rows = rows.repartition(keys, "part").mapInArrow(_Merge(merge, to_partition, only_totals=again), _SCHEMA)
        return rows

    return [keyed_rows.unpacked(0, what, packed) for what, packed in _collected(parts, merged)]


def _results(
    results: Sequence[KeyedRows], known: KnownDatasets, names: pl.Series, tables: Collection[str]
) -> dict[str, pl.DataFrame]:
    """The frames ``contents`` and ``presence``, as far as ``tables`` were read, of the merged rows."""
    import polars as pl

    from cmsspark.kernel import dump_frames, keyed_rows
    from cmsspark.kernel.dataset_contents import contents_by_name

    frames = {}
    if "FILES" in tables:
        totals = [rows for rows in results if rows.what == keyed_rows.TOTALS]
        sums = keyed_rows.sums_in(totals, len(known.ids))
        frames["contents"] = dump_frames.contents_frame(contents_by_name(sums, known), names)
    if dump_frames.REPLICAS in tables:
        found = [keyed_rows.presence_in(rows) for rows in results if rows.what == keyed_rows.PRESENCE]
        counts_blocks = "BLOCKS" in tables
        pieces = [
            dump_frames.presence_frame(one, counts_blocks=counts_blocks) for one in (*found, keyed_rows.no_presence())
        ]
        frames["presence"] = pl.concat(pieces)
    return frames


def as_dataframe(spark: SparkSession, rows: pa.Table, schema: Table) -> DataFrame:
    """Return rows of the driver, with the columns of ``schema``, as a DataFrame."""
    starts = range(0, max(1, rows.num_rows), _SENT_ROWS)
    packed = [encode_rows(rows.slice(start, _SENT_ROWS)) for start in starts]
    numbers = spark.range(0, len(packed), 1, len(packed))
    return numbers.mapInArrow(_Decode(packed), schema.spark())


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


def _collected(
    parts: Sequence[DataFrame], then: Callable[[DataFrame], DataFrame] = lambda rows: rows
) -> list[tuple[str, bytes]]:
    """Rows (what, packed) of all parts, after ``then``, by one job."""
    if not parts:
        return []
    with static_plans(parts[0].sparkSession):
        rows = then(reduce(lambda left, right: left.unionAll(right), parts))
        return [(row["what"], bytes(row["packed"])) for row in rows.select("what", "packed").collect()]


@dataclass(frozen=True)
class _Whole:
    """Rows of a small table, encoded. Runs in Python workers, as the classes below do."""

    name: str

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        for table in tables:
            yield _batch(0, 0, self.name, encode_rows(table))


@dataclass(frozen=True)
class _Keyed:
    """Keyed rows of a large table, packed."""

    mapper: Callable[[Iterable[pa.Table]], Iterator[KeyedRows]]
    to_partition: Sequence[int]

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        for rows in self.mapper(tables):
            yield _batch(self.to_partition[rows.key], rows.key, rows.what, rows.packed())


@dataclass(frozen=True)
class _Merge:
    """Merges the rows of each key; ``only_totals``: sums of datasets alone, after the first merge."""

    merge: DumpMerge
    to_partition: Sequence[int]
    only_totals: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from cmsspark.kernel.keyed_rows import TOTALS, merged_totals, unpacked

        by_key: dict[int, list[KeyedRows]] = defaultdict(list)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("key", "what", "packed")]
            for key, what, packed in zip(*columns, strict=True):
                if self.only_totals and what != TOTALS:
                    yield _batch(self.to_partition[key], key, what, packed)
                else:
                    by_key[key].append(unpacked(key, what, packed))
        while by_key:
            key, found = by_key.popitem()
            merged = [merged_totals(key, found)] if self.only_totals else self.merge(key, found)
            for rows in merged:
                yield _batch(self.to_partition[rows.key], rows.key, rows.what, rows.packed())


@dataclass(frozen=True)
class _Decode:
    """The rows that are encoded under the numbers of the input."""

    packed: Sequence[bytes]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from decode_rows(self.packed[number]).to_batches()


def _batch(part: int, key: int, what: str, packed: bytes) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    numbers: list[npt.NDArray[Any]] = [np.array([part], np.int32), np.array([key], np.int32)]
    columns = [*map(buffers.from_numpy, numbers), buffers.array([what], "string"), buffers.binary([packed])]
    return pa.RecordBatch.from_arrays(columns, ["part", "key", "what", "packed"])
