"""A job on dumps in Spark: the tasks read, count and merge with the kernel, and the driver gets the frames of the job.

Two queries at most. The first collects the small tables. The second reads FILES, BLOCKS and the replicas, moves their
rows as packed columns to one task for each key, and moves the sums of datasets once more. The driver holds a row for
each dataset, and one for each (dataset, site, kind): no file, no block and no replica.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from cmsspark.base.schemas import Table
from cmsspark.dumps import keyed_batches
from cmsspark.dumps.dump_tables import TableSource
from cmsspark.dumps.keyed_batches import SCHEMA, PackRows, packed_batch
from cmsspark.dumps.keyed_rows import unpacked
from cmsspark.engines.merge_task import decode_rows, encode_rows
from cmsspark.engines.scan import set_sizes
from cmsspark.engines.session import static_plans

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.dumps.dataset_contents import KnownDatasets
    from cmsspark.dumps.dataset_replicas import StorageByNode
    from cmsspark.dumps.keyed_rows import KeyedRows
    from cmsspark.dumps.rucio_scan import RucioScan

#: Decompressed bytes of the dumps whose rows one key takes: some two million files, 100 MB of numbers.
KEY_BYTES: Final = 512 * 1024 * 1024
#: Rows that are encoded together where a table goes to Spark.
_SENT_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class DumpRows:
    """What Spark made of dumps. ``frames``: those of jobs; ``others``: merged rows of Rucio that are in no frame;
    ``names``: those of the datasets of DBS by number.
    """

    frames: dict[str, pl.DataFrame]
    others: list[KeyedRows]
    names: pl.Series


def read_frames(
    spark: SparkSession,
    sources: Mapping[str, TableSource],
    keys: int | None = None,
    storage: StorageByNode | None = None,
) -> dict[str, pl.DataFrame]:
    """Return the frames of :func:`read_rows`, of dumps without Rucio."""
    return read_rows(spark, sources, keys, storage).frames


def read_rows(
    spark: SparkSession,
    sources: Mapping[str, TableSource],
    keys: int | None = None,
    storage: StorageByNode | None = None,
    rucio: RucioTables | None = None,
) -> DumpRows:
    """Return the frames that jobs on dumps build on, from the tables by name, and what Rucio's tables come to.

    The frames are those of :func:`cmsspark.dumps.dump_frames.read_frames`. ``keys``: into how many parts the rows of
    large tables are divided, a power of two; None: as many as their bytes need. ``storage``: of each node, where the
    nodes' names do not say it. Raises what the tables' readers raise, wrapped in Spark's errors.
    """
    from cmsspark.dumps import dump_frames
    from cmsspark.dumps.dump_frames import is_small

    set_sizes(spark, sum(source.weight for source in sources.values()))
    small = {name: source for name, source in sources.items() if is_small(name)}
    pieces: dict[str, list[pa.Table]] = defaultdict(list)
    for what, packed in _collected([source.mapped(_Whole(name), SCHEMA) for name, source in small.items()]):
        pieces[what].append(decode_rows(packed))
    frames = {
        name: dump_frames.frame_of(pieces[name] or [source.columns.empty_table()]) for name, source in small.items()
    }
    known, names = dump_frames.datasets_in(frames)
    large = {name: source for name, source in sources.items() if not is_small(name)}
    if not large and rucio is None:
        return DumpRows(frames, [], names)
    weight = sum(source.weight for source in large.values()) + (rucio.scan.weight if rucio else 0)
    work = _LargeTables(large, known, names.to_list(), keys or key_count(weight), storage, rucio)
    results = work.merged()
    return DumpRows(frames | _results(results, known, names, work), results, names)


def key_count(weight: int) -> int:
    """Return the number of keys for so many bytes: a power of two."""
    from cmsspark.dumps.keyed_rows import MOST_KEYS

    needed = -(-weight // KEY_BYTES)
    return min(MOST_KEYS, 1 << max(0, needed - 1).bit_length())


@dataclass(frozen=True)
class RucioTables:
    """The tables of Rucio that a job reads. ``has_presence``: whether it reads what lies where; ``is_check``: whether
    it compares files with those of DBS.
    """

    scan: RucioScan
    has_presence: bool
    is_check: bool = False

    def rows(self, keys: int, count: int, of_dbs: Sequence[DataFrame]) -> DataFrame:
        """Return the sums of files by block. ``of_dbs``: rows of FILES that are compared, of ``count`` datasets."""
        from cmsspark.dumps.catalogue_rows import CheckedFileMerge
        from cmsspark.dumps.rucio_rows import FileMerge

        merge = FileMerge(keys, self.scan.day_ms)
        rows = reduce(lambda left, right: left.unionAll(right), [self.scan.rows(keys), *of_dbs])
        return keyed_batches.merged(rows, keys, CheckedFileMerge(merge, count) if self.is_check else merge)


@dataclass(frozen=True)
class _LargeTables:
    """The tables that are merged by key. ``names``: those that ``known`` numbers."""

    sources: Mapping[str, TableSource]
    known: KnownDatasets
    names: Sequence[str]
    keys: int
    storage: StorageByNode | None
    rucio: RucioTables | None

    @property
    def has_presence(self) -> bool:
        """Whether there are replicas, and what lies where is wanted."""
        from cmsspark.dumps.dump_frames import REPLICAS

        return REPLICAS in self.sources or (self.rucio is not None and self.rucio.has_presence)

    @property
    def has_contents(self) -> bool:
        """Whether FILES are summed by dataset."""
        return "FILES" in self.sources and not self._is_check

    @property
    def _is_check(self) -> bool:
        return self.rucio is not None and self.rucio.is_check

    def merged(self) -> list[KeyedRows]:
        """Read the tables and merge their rows, by key."""
        parts = {name: self._mapped(name) for name in self.sources}
        if self.rucio is not None:
            of_dbs = [parts.pop("FILES")] if self._is_check else []
            parts["rucio"] = self.rucio.rows(self.keys, len(self.names), of_dbs)
        with nullcontext() if self.rucio is None else self.rucio.scan.one_file_a_task():
            collected = _collected(list(parts.values()), self._then)
        return [unpacked(0, what, packed) for what, packed in collected]

    def _mapped(self, name: str) -> DataFrame:
        """Return the keyed rows of a table."""
        from cmsspark.counting.catalogue import check_hash, hashes_of, name_hash
        from cmsspark.dumps import catalogue_rows, keyed_rows

        mapper: Callable[[Iterable[pa.Table]], Iterator[KeyedRows]] = keyed_rows.ReplicaMapper(self.keys)
        if name == "FILES":
            mapper = keyed_rows.FileMapper(self.known, self.keys)
            if self._is_check:
                mapper = catalogue_rows.CheckedFileMapper(self.known, self.keys)
        elif name == "BLOCKS" and self._is_check:
            mapper = catalogue_rows.NamedBlockMapper(self.keys)
        elif name == "BLOCKS":
            texts = [text.encode() for text in self.names]
            hashes, checks = (hashes_of(texts, len(texts), one) for one in (name_hash, check_hash))
            mapper = keyed_rows.BlockMapper(self.known, hashes, checks, self.keys)
        return self.sources[name].mapped(PackRows(mapper, keyed_batches.partition_numbers(self.keys)), SCHEMA)

    def _then(self, rows: DataFrame) -> DataFrame:
        """Return the merge of all rows, and once more of the sums that other keys may have."""
        from cmsspark.dumps import catalogue_rows, keyed_rows, rucio_blocks

        count, keys = len(self.known.ids), self.keys
        merge: keyed_batches.Merge | None = None
        if self._is_check:
            merge = catalogue_rows.CatalogueMerge(len(self.names), keys)
        elif self.has_presence or self.sources:
            merge = keyed_rows.DumpMerge(count, keys, "BLOCKS" in self.sources, self.storage)
        if self.rucio is not None:
            merge = rucio_blocks.BlockMerge(tuple(rse.name for rse in self.rucio.scan.rses.rses), merge)
        assert merge is not None
        rows = keyed_batches.merged(rows, keys, merge)
        if keys > 1 and "FILES" in self.sources:
            # Not self, which has DataFrames.
            named = len(self.names)
            again = {
                keyed_rows.TOTALS: lambda key, some: [keyed_rows.merged_totals(key, some)],
                catalogue_rows.DIFFERING: lambda _, some: catalogue_rows.merged_differences(some, named, keys),
            }
            rows = keyed_batches.merged(rows, keys, keyed_batches.MergeKinds(again))
        return rows


def _results(
    results: Sequence[KeyedRows], known: KnownDatasets, names: pl.Series, tables: _LargeTables
) -> dict[str, pl.DataFrame]:
    """Return the frames ``contents`` and ``presence`` of the merged rows, as far as they are wanted."""
    import polars as pl

    from cmsspark.dumps import dump_frames, keyed_rows
    from cmsspark.dumps.dataset_contents import contents_by_name

    frames = {}
    if tables.has_contents:
        totals = [rows for rows in results if rows.what == keyed_rows.TOTALS]
        sums = keyed_rows.sums_in(totals, len(known.ids))
        frames["contents"] = dump_frames.contents_frame(contents_by_name(sums, known), names)
    if tables.has_presence:
        found = [keyed_rows.presence_in(rows) for rows in results if rows.what == keyed_rows.PRESENCE]
        counts_blocks = "BLOCKS" in tables.sources
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
            yield packed_batch(0, 0, self.name, encode_rows(table))


@dataclass(frozen=True)
class _Decode:
    """The rows that are encoded under the numbers of the input."""

    packed: Sequence[bytes]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from decode_rows(self.packed[number]).to_batches()
