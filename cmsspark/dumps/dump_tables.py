"""The table of a dump in Spark. One task reads a few part files, always with ``sqoop_csv``.

A worker opens the files that it can reach: on a disk, and on HDFS where the extra ``cmsspark[hdfs]`` is installed.
Spark reads all others as lines and passes them to the worker. A large plain file that is not on a disk is read by
several tasks, each from the start of a line; a value with a newline at such a place is an error of its reader, never
another value.
Spark's own CSV reader is not used: it keeps a ``\\`` outside quotes, so its rows would differ from the catalogue's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Final, TypeVar, cast

from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.schemas import Table, input_table
from cmsspark.dumps.hdfs_parts import client_for, divided, open_lines, range_name
from cmsspark.engines.cores import count_cores
from cmsspark.engines.explicit_files import read_explicit_files
from cmsspark.engines.scan import SPARK_TASK_BYTES
from cmsspark.engines.tasks import weigh
from cmsspark.filesystems.hdfs import LineRange, RemoteFiles
from cmsspark.filesystems.storage import AWAY, is_local, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import arrow_schema, read_table
from cmsspark.sources.listing import InputFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Decompressed bytes for each task, at most.
TASK_BYTES: Final = 512 * 1024 * 1024
#: The lines of a part file are kept in memory up to so many bytes, and beyond that in a temporary file.
SPOOL_BYTES: Final = 64 * 1024 * 1024
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class TableSource:
    """A table of a dump: the ``rows`` that Spark hands to its workers, and ``read``, which makes rows of the table.

    ``columns``: those of the table's rows. ``weight``: decompressed bytes, about.
    """

    rows: DataFrame
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    columns: pa.Schema
    weight: int

    def table(self) -> DataFrame:
        """Return the rows of the table."""
        kinds = {"string": "string", "int64": "bigint", "double": "double"}
        schema = ", ".join(f"`{field.name}` {kinds[str(field.type)]}" for field in self.columns)
        return self.rows.mapInArrow(self.read, schema)

    @property
    def items(self) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]]:
        """What makes tables of Spark's rows, in the worker that reads them: texts do not cross to the JVM and back."""
        return _Tables(self.read)

    def mapped(self, mapper: Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]], schema: str) -> DataFrame:
        """Return the rows that ``mapper`` makes of the table's rows, in the worker that reads them."""
        return self.rows.mapInArrow(_Mapped(self.items, mapper), schema)


@dataclass(frozen=True)
class _Tables:
    read: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        import pyarrow as pa

        return (pa.Table.from_batches([batch]) for batch in self.read(batches))


@dataclass(frozen=True)
class _Mapped:
    items: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]]
    mapper: Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.mapper(self.items(batches))


def table_source(
    spark: SparkSession,
    dump: Dump,
    name: str,
    columns: Sequence[str],
    feed: str = "auto",
    remote: RemoteFiles | None = None,
) -> TableSource:
    """Return the source of a dump's table: ``columns`` in this order, with the types of ``schemas/inputs``, nullable.

    ``feed``: ``direct`` (workers open the files), ``spark`` (Spark reads lines), or ``auto``. ``remote``: what opens
    files on HDFS in the workers; None: the client that is installed, if there is one. An action on the result raises
    DataError (65) for damage and for rows that rule 19 does not allow.
    """
    table = input_table(f"{dump.kind}/{name}")
    files = [file for file in dump.tables[name] if file.size]
    schema = arrow_schema(table, columns)
    weight = sum(weigh(file.path, file.size) for file in files)
    if feed != "spark" and (remote := remote or client_for(spark, files)) is not None:
        ranges = pack_ranges(files, count_cores(spark))
        numbers = spark.range(0, len(ranges), 1, max(1, len(ranges)))
        return TableSource(
            numbers.toDF("number"), _ReadLineRanges(ranges, table, tuple(columns), remote), schema, weight
        )
    if feed == "auto":
        feed = "direct" if all(is_local(file.path) for file in files) else "spark"
    if feed == "direct" or not files:
        tasks = pack_files(files, count_cores(spark))
        numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return TableSource(numbers.toDF("number"), _ReadFiles(tasks, table, tuple(columns)), schema, weight)
    return TableSource(_lines(spark, files), _ReadLines(table, tuple(columns)), schema, weight)


def pack_files(files: Iterable[InputFile], cores: int, task_bytes: int = TASK_BYTES) -> list[tuple[str, ...]]:
    """Return the paths of each task. Tasks have about even size; there are at least as many as cores or files."""
    weighed = [(weigh(file.path, file.size), file.path) for file in files]
    return _packed(weighed, min(task_bytes, sum(weight for weight, _ in weighed) // max(1, cores)))


def pack_ranges(
    files: Sequence[InputFile], cores: int, task_bytes: int = TASK_BYTES, least_bytes: int = SPARK_TASK_BYTES
) -> list[tuple[LineRange, ...]]:
    """Return the ranges of each task on a cluster, as :func:`pack_files` does; no task is made for less than
    ``least_bytes`` while others have room.
    """
    weighed = divided(files, task_bytes)
    share = sum(weight for weight, _ in weighed) // max(1, cores)
    return _packed(weighed, max(least_bytes, min(task_bytes, share)))


def _packed(weighed: Iterable[tuple[int, _Part]], limit: int) -> list[tuple[_Part, ...]]:
    """Put parts together up to ``limit`` bytes, the largest first."""
    packed: list[list[_Part]] = []
    free = 0
    for weight, part in sorted(weighed, key=itemgetter(0), reverse=True):
        if not packed or weight > free:
            packed.append([])
            free = limit
        packed[-1].append(part)
        free -= weight
    return [tuple(parts) for parts in packed]


def _lines(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    from pyspark.sql import functions as F

    lines = read_explicit_files(spark, "text", [_uri(file.path) for file in files], lineSep="\n")
    # As bytes: the reader of the table handles lines that are not UTF-8.
    return lines.select(F.col("file_path"), F.col("value").cast("binary"))


def _uri(path: str) -> str:
    return f"file://{local_path(path)}" if is_local(path) else path


@dataclass(frozen=True)
class _ReadFiles:
    """Reads the files of the tasks whose numbers the input rows hold."""

    tasks: list[tuple[str, ...]]
    table: Table
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for path in self.tasks[number]:
                    yield from self.read(path)

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        try:
            for piece in read_table(local_path(path), self.table, self.columns, path):
                yield from piece.to_batches()
        except OSError as error:
            kind = NotReady if error.errno in AWAY else DataError
            raise kind("a file of a dump cannot be read", where=path, found=error.strerror) from None


@dataclass(frozen=True)
class _ReadLineRanges:
    """Reads the ranges of the tasks whose numbers the input rows hold, opened with ``remote``."""

    tasks: list[tuple[LineRange, ...]]
    table: Table
    columns: tuple[str, ...]
    remote: RemoteFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in self.tasks[number]:
                    with open_lines(self.remote, part) as stream:
                        for piece in read_table(stream, self.table, self.columns, range_name(part)):
                            yield from piece.to_batches()


@dataclass(frozen=True)
class _ReadLines:
    """Parses the (file, line) rows that Spark has read, file by file, as a value may span several lines."""

    table: Table
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        runs = (run for batch in batches for run in _runs(batch))
        for file, same_file in groupby(runs, key=itemgetter(0)):
            with SpooledTemporaryFile(SPOOL_BYTES) as spool:
                for _, lines in same_file:
                    spool.write(b"\n".join(lines) + b"\n")
                spool.seek(0)
                stream = cast("IO[bytes]", spool)
                # Spark has decompressed a .gz already.
                for piece in read_table(stream, self.table, self.columns, file.removesuffix(".gz")):
                    yield from piece.to_batches()


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[str, list[bytes]]]:
    """Yield (file, lines) for each run of rows of one file, in order."""
    import pyarrow.compute as pc

    runs = pc.run_end_encode(batch.column(0))
    start = 0
    for file, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield file, batch.column(1).slice(start, end - start).to_pylist()
        start = end
