"""A Rucio dump in Spark: tasks read ranges of its Avro files and keep the rows that count, and those of a file meet.

Each table is read once and moves once. A worker opens the files that it can reach, in ranges: on a disk, and on HDFS
where the extra ``cmsspark[hdfs]`` is installed. Spark reads all others, a task for each file, and passes their bytes
piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Final, cast

import numpy as np

from cmsspark.base.errors import DataError, NotReady
from cmsspark.dumps import rucio_rows
from cmsspark.dumps.file_partitions import ACCESS_COLUMNS, REPLICA_COLUMNS, gathered
from cmsspark.dumps.forward_stream import ForwardStream
from cmsspark.dumps.keyed_batches import SCHEMA, MergeKinds, merged, packed_rows, partition_numbers
from cmsspark.dumps.keyed_rows import KeyedRows
from cmsspark.dumps.partitions import ROWS
from cmsspark.engines.explicit_files import read_exact_files
from cmsspark.engines.hdfs_scan import SCHEME
from cmsspark.filesystems.hdfs import RemoteFiles, client_of, open_whole
from cmsspark.filesystems.storage import AWAY, is_local, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.avro_ranges import open_container
from cmsspark.sources.listing import InputFile
from cmsspark.sources.rses import Rses
from cmsspark.sources.rucio import Arrays, RucioReader, TableCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Bytes of a file that are read with one numbering of names. A worker that opens the files reads them in one task.
RANGE_BYTES: Final = 128 * 1024 * 1024
#: Bytes of CSV that take as much memory as a byte of Avro: 90 bytes are a row.
WEIGHT: Final = 4
#: The tables that are read, as far as a dump has them.
TABLES: Final = ("CONTENTS", "REPLICAS", "DIDS")


@dataclass(frozen=True)
class RucioScan:
    """A dump to read. ``day_ms``: the day in which replicas are new. ``feed``: ``direct`` (workers open the files),
    ``spark`` (Spark passes bytes), or ``auto``. ``remote``: what opens files on HDFS in the workers; None: the client
    that is installed, if there is one.
    """

    spark: SparkSession
    dump: Dump
    rses: Rses
    day_ms: tuple[int, int]
    feed: str = "auto"
    range_bytes: int = RANGE_BYTES
    remote: RemoteFiles | None = None
    #: As of :class:`cmsspark.sources.rucio.RucioReader`.
    accessed_before_ms: int | None = None

    @property
    def weight(self) -> int:
        """Bytes of the files, as those of CSV."""
        return WEIGHT * sum(file.size for _, file in self._files())

    def rows(self, keys: int) -> DataFrame:
        """Return the rows that count, packed and keyed by file, with ``keyed_batches.SCHEMA``.

        An action on the result raises DataError (65) for damage and for another schema.
        """
        work = _ReadTable(self.rses, keys, partition_numbers(keys), self.range_bytes, self.accessed_before_ms)
        step = self.range_bytes
        files = self._files()
        if self._workers_open:
            ranges = [(table, file.path, first) for table, file in files for first in range(0, file.size, step)]
            numbers = self.spark.range(0, len(ranges), 1, max(1, len(ranges)))
            return numbers.mapInArrow(_ReadRanges(ranges, work, self._client), SCHEMA)
        parts = []
        for table in TABLES:
            if paths := [file.path for of_table, file in files if of_table == table]:
                parts.append(_pieces(self.spark, paths).mapInArrow(_ReadPieces(table, work), SCHEMA))
        return reduce(lambda left, right: left.unionAll(right), parts)

    def disk_replicas(self, keys: int) -> DataFrame:
        """Return rows of ``rucio_rows.DISK_REPLICAS``, each (block, site) once, and of ``READ_COUNTS``, packed.

        ``site`` is a number of :meth:`disk_sites`.
        """
        texts = self.disk_sites()
        sites = tuple(texts.index(rse.site) if rse.kind == "disk" else -1 for rse in self.rses.rses)
        rows = merged(self.rows(keys), keys, rucio_rows.DiskReplicaMerge(keys, sites))
        again = {rucio_rows.DISK_REPLICAS: rucio_rows.merged_disk_replicas}
        return merged(rows, keys, MergeKinds(again)) if keys > 1 else rows

    def disk_sites(self) -> list[str]:
        """Return the sites of storage elements on disk."""
        return sorted({rse.site for rse in self.rses.rses if rse.kind == "disk"})

    @contextmanager
    def one_file_a_task(self) -> Iterator[None]:
        """Have Spark divide no file that it reads meanwhile: an Avro block may lie on both sides of any byte."""
        if self._workers_open:
            yield
            return
        largest = max(file.size for _, file in self._files())
        names = ["spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes"]
        before = {name: self.spark.conf.get(name) for name in names}
        for name in names:
            self.spark.conf.set(name, str(largest))
        try:
            yield
        finally:
            for name, value in before.items():
                self.spark.conf.set(name, str(value))

    @cached_property
    def _workers_open(self) -> bool:
        files = self._files()
        if self.feed == "spark" and files:
            return False
        return self.feed == "direct" or all(is_local(file.path) for _, file in files) or self._client is not None

    @cached_property
    def _client(self) -> RemoteFiles | None:
        """What opens the files where all are on HDFS."""
        files = self._files()
        if not files or not all(file.path.startswith(SCHEME) for _, file in files):
            return None
        return self.remote or client_of(self.spark)

    def _files(self) -> list[tuple[str, InputFile]]:
        """Return the files that have content, the largest first, with their tables."""
        found = [(table, file) for table in TABLES for file in self.dump.tables.get(table, ()) if file.size]
        return sorted(found, key=lambda one: -one[1].size)


def counts_of(rows: Iterable[KeyedRows]) -> dict[str, TableCounts]:
    """Return the counts of each table. Raises DataError (65) where too many rows are damaged."""
    found: dict[str, TableCounts] = {}
    for one in rows:
        if one.what == rucio_rows.READ_COUNTS:
            (table,), (counts,) = one.names["tables"], one.names["counts"]
            part = TableCounts(counts["rows"], counts["damaged"], counts["examples"])
            part.ignored.update(counts["ignored"])
            found.setdefault(table, TableCounts()).add(part)
    for table, counts in sorted(found.items()):
        counts.check(table)
    return found


def _pieces(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the bytes of files between newlines, in order, with the file's path and size."""
    from pyspark.sql import functions as F

    pieces = read_exact_files(spark, "text", paths, lineSep="\n")
    return pieces.select("file_path", F.col("file_size"), F.col("value").cast("binary"))


@dataclass(frozen=True)
class _ReadTable:
    """Reads a range of a file of a table as packed rows."""

    rses: Rses
    keys: int
    to_partition: Sequence[int]
    range_bytes: int
    accessed_before_ms: int | None = None

    def __call__(
        self, table: str, stream: IO[bytes], path: str, first: int, container: Any
    ) -> Iterator[pa.RecordBatch]:
        reader = RucioReader(table, self.accessed_before_ms)
        pieces = reader.pieces(stream, path, first, first + self.range_bytes, container)
        mapper: Callable[..., Iterator[KeyedRows]] = {
            "REPLICAS": self._replicas, "CONTENTS": self._contents, "DIDS": self._accesses,
        }[table]  # fmt: skip
        yield from packed_rows(mapper(reader, pieces), self.to_partition)
        names: dict[str, list[Any]] = {"tables": [table], "counts": [reader.counts.as_dict()]}
        yield from packed_rows([KeyedRows(0, rucio_rows.READ_COUNTS, {}, names)], self.to_partition)

    def _replicas(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        for rows in gathered((reader.replica_rows(piece, self.rses) for piece in pieces), ROWS, REPLICA_COLUMNS):
            yield from rucio_rows.replica_rows(rows, self.keys)

    def _contents(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        attached = _Gathered()
        files = (attached.taken(reader.content_rows(piece)) for piece in pieces)
        for rows in gathered(files, ROWS, ("hash", "check", "parent", "bytes")):
            yield from rucio_rows.content_rows(rows, reader.texts("NAME"), self.keys)
        if attached.rows:
            hashes = rucio_rows.hashes_of_names(reader.texts("NAME"))
            yield from rucio_rows.attachment_rows(attached.column("hash"), hashes[attached.column("parent")], self.keys)

    def _accesses(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        others = _Gathered()
        files = (others.taken(reader.did_rows(piece)) for piece in pieces)
        for rows in gathered(files, ROWS, ACCESS_COLUMNS):
            yield from rucio_rows.access_rows(rows, self.keys)
        if others.rows:
            yield from rucio_rows.dataset_access_rows(others.column("dataset"), others.column("accessed_ms"), self.keys)


class _Gathered:
    """The second of two results, held until the end of a range."""

    def __init__(self) -> None:
        self.rows: list[Arrays] = []

    def taken(self, both: tuple[Arrays, Arrays]) -> Arrays:
        """Keep the second result and return the first."""
        self.rows.append(both[1])
        return both[0]

    def column(self, name: str) -> Any:
        return np.concatenate([one[name] for one in self.rows])


@dataclass(frozen=True)
class _ReadRanges:
    """Reads the ranges of files whose numbers the input rows hold; those of HDFS are opened with ``remote``."""

    ranges: list[tuple[str, str, int]]
    work: _ReadTable
    remote: RemoteFiles | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table, path, first = self.ranges[number]
                with self._opened(path) as stream:
                    yield from self.work(table, stream, path, first, None)

    @contextmanager
    def _opened(self, path: str) -> Iterator[IO[bytes]]:
        if self.remote is not None:
            with open_whole(self.remote, path) as remote:
                yield cast("IO[bytes]", remote)
            return
        try:
            with open(local_path(path), "rb") as stream:
                yield stream
        except OSError as error:
            kind = NotReady if error.errno in AWAY else DataError
            raise kind("a file of a dump cannot be read", where=path, found=error.strerror) from None


@dataclass(frozen=True)
class _ReadPieces:
    """Reads whole files of a table, of rows (path, size, bytes between newlines), range after range."""

    table: str
    work: _ReadTable

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pieces = (piece for batch in batches for piece in _runs(batch))
        for (path, size), of_file in groupby(pieces, key=itemgetter(0)):
            forward = ForwardStream(size, (content for _, content in of_file))
            stream = cast("IO[bytes]", forward)
            container = open_container(stream, path)
            for first in range(0, size, self.work.range_bytes):
                forward.release(first)
                yield from self.work(self.table, stream, path, first, container)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Yield ((path, size), bytes) for each run of rows of one file, with a newline after each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    runs = pc.run_end_encode(batch.column(0))
    start = 0
    for path, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        rows = batch.column(2).slice(start, end - start).cast(pa.large_binary())
        together = pa.LargeListArray.from_arrays(pa.array([0, len(rows)], pa.int64()), rows)
        (content,) = pc.binary_join(together, pa.scalar(b"\n", pa.large_binary())).to_pylist()
        yield (path, batch.column(1)[start].as_py()), content + b"\n"
        start = end
