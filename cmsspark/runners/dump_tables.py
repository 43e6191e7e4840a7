"""The table of a dump as a DataFrame. One task reads a few part files, always with ``sqoop_csv``.

A worker opens the files that it can reach. Spark reads all others, as on HDFS, as lines and passes them to the worker.
Spark's own CSV reader is not used: it keeps a ``\\`` outside quotes, so its rows would differ from the catalogue's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Final, cast

from cmsspark.errors import DataError, NotReady
from cmsspark.runners.read_exact_files import read_exact_files
from cmsspark.runners.spark_columns import milliseconds, node_kind, node_site
from cmsspark.runners.tasks import weight_of
from cmsspark.schemas import Table, input_table
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.listing import InputFile
from cmsspark.sources.registry import REPLICAS
from cmsspark.storage import AWAY, is_local, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Decompressed bytes for each task, at most.
TASK_BYTES: Final = 128 * 1024 * 1024
#: The lines of a part file are kept in memory up to so many bytes, and beyond that in a temporary file.
SPOOL_BYTES: Final = 64 * 1024 * 1024


def dump_table(spark: SparkSession, dump: Dump, name: str, columns: Sequence[str], feed: str = "auto") -> DataFrame:
    """Return the rows of a dump's table: ``columns`` in this order, with the types of ``schemas/inputs``, nullable.

    ``feed``: ``direct`` (workers open the files), ``spark`` (Spark reads lines), or ``auto``. An action on the result
    raises DataError (65) for damage and for rows that rule 19 does not allow.
    """
    table = input_table(f"{dump.kind}/{name}")
    files = dump.tables[name]
    if feed == "auto":
        feed = "direct" if all(is_local(file.path) for file in files) else "spark"
    read = _direct if feed == "direct" else _through_spark
    return read(spark, [file for file in files if file.size], table, tuple(columns))


def pack_files(files: Iterable[InputFile], cores: int, task_bytes: int = TASK_BYTES) -> list[tuple[str, ...]]:
    """Return the paths of each task. Tasks have about even size; there are at least as many as cores or files."""
    weighed = [(weight_of(file.path, file.size), file.path) for file in files]
    limit = min(task_bytes, sum(weight for weight, _ in weighed) // max(1, cores))
    packed: list[list[str]] = []
    free = 0
    for weight, path in sorted(weighed, reverse=True):
        if not packed or weight > free:
            packed.append([])
            free = limit
        packed[-1].append(path)
        free -= weight
    return [tuple(paths) for paths in packed]


def _schema(table: Table, columns: Sequence[str]) -> str:
    spark_types = {"string": "string", "long": "bigint", "double": "double"}
    types = {column.name: spark_types[column.type] for column in table.columns}
    return ", ".join(f"`{name}` {types[name]}" for name in columns)


def _direct(spark: SparkSession, files: Sequence[InputFile], table: Table, columns: tuple[str, ...]) -> DataFrame:
    tasks = pack_files(files, spark.sparkContext.defaultParallelism)
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(_ReadFiles(tasks, table, columns), _schema(table, columns))


def _through_spark(
    spark: SparkSession, files: Sequence[InputFile], table: Table, columns: tuple[str, ...]
) -> DataFrame:
    from pyspark.sql import functions as F

    if not files:
        return _direct(spark, files, table, columns)
    lines = read_exact_files(spark, "text", [_uri(file.path) for file in files], lineSep="\n")
    # As bytes: the reader of the table handles lines that are not UTF-8.
    pairs = lines.select(F.col("file_path"), F.col("value").cast("binary"))
    return pairs.mapInArrow(_ReadLines(table, columns), _schema(table, columns))


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


_REPLICA_COLUMNS: Final = (
    "dataset_name",
    "block_name",
    "block_files",
    "block_bytes",
    "node_name",
    "br_node_files",
    "br_node_bytes",
    "replica_time_create",
    "replica_time_update",
)


def replica_rows(spark: SparkSession, dump: Dump, feed: str = "auto") -> DataFrame:
    """Return one row for each row of the snapshot, that is for each (block, node).

    Columns: ``dataset_name``, ``block_name``, ``node_name``, ``site_name``, ``kind`` (disk, tape, buffer);
    ``block_files``, ``block_bytes`` of the whole block; ``node_files``, ``node_bytes`` present at the node;
    ``created_ms``, ``updated_ms`` of the replica (Unix milliseconds, UTC). Any may be null.
    """
    from pyspark.sql import functions as F

    return dump_table(spark, dump, REPLICAS, _REPLICA_COLUMNS, feed).select(
        "dataset_name",
        "block_name",
        "node_name",
        node_site("node_name").alias("site_name"),
        node_kind("node_name").alias("kind"),
        "block_files",
        "block_bytes",
        F.col("br_node_files").alias("node_files"),
        F.col("br_node_bytes").alias("node_bytes"),
        milliseconds("replica_time_create").alias("created_ms"),
        milliseconds("replica_time_update").alias("updated_ms"),
    )
