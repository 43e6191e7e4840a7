"""Keyed rows in Spark: tasks make packed rows, an exchange brings those of one key
together, and a task merges them.

The JVM neither decodes nor compares rows. The classes run in Python workers.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from itertools import groupby
from operator import itemgetter
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec
import numpy as np

from cmsspark.base import buffers
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.schemas import Table, input_table
from cmsspark.dumps.keyed_rows import KeyedRows, Mapper, Merge, unpack
from cmsspark.dumps.rucio_scan import RANGE_BYTES, RangeSource, range_sources
from cmsspark.engines.merge_task import decode_rows, encode_rows, partition_numbers
from cmsspark.engines.scan import (
    SCHEME,
    SPARK_TASK_BYTES,
    WHOLE_BYTES,
    read_explicit_files,
    set_sizes,
    split_file,
)
from cmsspark.engines.session import count_cores, static_plans
from cmsspark.engines.tasks import first_values, weigh
from cmsspark.filesystems.hdfs import (
    LineRange,
    RemoteFile,
    RemoteFiles,
    choose_client,
    hdfs_errors,
    open_whole,
)
from cmsspark.filesystems.storage import AWAY, is_local, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.lines import is_packed_name, unpacker
from cmsspark.sources.formats.sqoop_csv import arrow_schema, read_table
from cmsspark.sources.layout import InputFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.dumps.rucio_scan import Scan
    from cmsspark.sources.dumps import Dump

#: ``part`` decides on the partition: a number for each key.
SCHEMA: Final = "part int, key int, kind string, packed binary"
#: Rows that are encoded together where a table goes to Spark.
_SENT_ROWS: Final = 1_000_000


class SparkTransport(msgspec.Struct):
    """Carries rows by exchanges of Spark. ``feed``: ``direct`` (workers open the
    files), ``spark`` (Spark passes lines or bytes), or ``auto``. ``remote``: what opens
    files on HDFS in the workers; None: the client that is installed, if there is one.
    ``range_bytes``: of Rucio's files that are read with one numbering of names.
    """

    spark: SparkSession
    feed: str = "auto"
    remote: RemoteFiles | None = None
    #: Some two million files of DBS, 100 MB of numbers.
    key_bytes: int = 512 * 1024 * 1024
    range_bytes: int = RANGE_BYTES
    #: Bytes of the sources so far, and of the largest file that Spark must not divide.
    _weight: int = 0
    _undivided: int = 0

    def table(self, dump: Dump, name: str, columns: Sequence[str]) -> TableSource:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        return table_source(self.spark, dump, name, columns, self.feed, self.remote)

    def ranges(self, scan: Scan) -> list[RangeSource]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        sources, self._undivided = range_sources(
            self.spark, scan, self.feed, self.remote, self.range_bytes
        )
        return sources

    def map(self, source: TableSource | RangeSource, mapper: Mapper[Any], keys: int) -> DataFrame:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        self._weight += source.weight
        return source.rows.mapInArrow(
            partial(_map_items, source.items, mapper, partition_numbers(keys)), SCHEMA
        )

    def union(self, rows: Sequence[DataFrame]) -> DataFrame:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        return reduce(lambda first, right: first.unionAll(right), rows)

    def merge(self, rows: DataFrame, keys: int, merge: Merge) -> DataFrame:
        """See :class:`cmsspark.dumps.dump_plan.Transport`: one exchange."""
        return rows.repartition(keys, "part").mapInArrow(
            partial(_merge_keys, merge, partition_numbers(keys)), SCHEMA
        )

    def collect(self, rows: DataFrame) -> list[KeyedRows]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`: one job."""
        set_sizes(self.spark, self._weight)
        self._weight = 0
        with self.running():
            packed = rows.select("key", "kind", "packed").collect()
        return [unpack(row["key"], row["kind"], bytes(row["packed"])) for row in packed]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run actions on rows: without adaptive execution, and with Rucio's files a
        task each where Spark reads them, as an Avro block may lie on both sides of any
        byte.
        """
        names = (
            ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
            if self._undivided
            else ()
        )
        before = {name: self.spark.conf.get(name) for name in names}
        for name in names:
            self.spark.conf.set(name, str(self._undivided))
        try:
            with static_plans(self.spark):
                yield
        finally:
            for name, value in before.items():
                self.spark.conf.set(name, str(value))


def _map_items(
    items: Callable[[Iterable[pa.RecordBatch]], Iterable[Any]],
    mapper: Mapper[Any],
    to_partition: Sequence[int],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Map what a source makes of its input, and pack the rows."""
    return _pack_rows(mapper(items(batches)), to_partition)


def _merge_keys(
    merge: Merge, to_partition: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Merge the rows of each key, and pack those that come of it."""
    by_key: dict[int, list[KeyedRows]] = defaultdict(list)
    for rows in unpack_batches(batches):
        by_key[rows.key].append(rows)
    while by_key:
        key, rows_of_key = by_key.popitem()
        yield from _pack_rows(merge(key, rows_of_key), to_partition)


def unpack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[KeyedRows]:
    """Yield the rows of batches of :data:`SCHEMA`."""
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("key", "kind", "packed")]
        yield from map(unpack, *columns)


def _pack_rows(rows: Iterable[KeyedRows], to_partition: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield each as a batch of :data:`SCHEMA`."""
    import pyarrow as pa

    for entry in rows:
        numbers = [np.array([number], np.int32) for number in (to_partition[entry.key], entry.key)]
        packed = buffers.binary([b"".join(entry.buffers())])
        columns = [
            *map(buffers.from_numpy, numbers),
            buffers.array([entry.kind], "string"),
            packed,
        ]
        yield pa.RecordBatch.from_arrays(columns, ["part", "key", "kind", "packed"])


def send_table(spark: SparkSession, rows: pa.Table, schema: Table) -> DataFrame:
    """Return rows of the driver, with the columns of ``schema``, as a DataFrame."""
    starts = range(0, max(1, rows.num_rows), _SENT_ROWS)
    packed = [encode_rows(rows.slice(start, _SENT_ROWS)) for start in starts]
    numbers = spark.range(0, len(packed), 1, len(packed))
    return numbers.mapInArrow(partial(_decode, packed), schema.spark())


def _decode(
    packed: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are encoded under the numbers of the input."""
    for number in first_values(batches):
        yield from decode_rows(packed[number]).to_batches()


# The table of a dump in Spark. One task reads a few part files, always with
# ``sqoop_csv``. A worker opens the files that it can reach: on a disk, and on HDFS where
# the extra ``cmsspark[hdfs]`` is installed. Spark reads all others as lines and passes
# them to the worker. A large plain file that is not on a disk is read by several tasks,
# each from the start of a line; a value with a newline at such a place is an error of its
# reader, never another value. Spark's own CSV reader is not used: it keeps a ``\\``
# outside quotes, so its rows would differ from the catalogue's.

#: Decompressed bytes for each task, at most.
TASK_BYTES: Final = 512 * 1024 * 1024
#: The lines of a part file are kept in memory up to so many bytes, and beyond that in a
#: temporary file.
SPOOL_BYTES: Final = 64 * 1024 * 1024
#: Bytes that are read at once to find the end of a line: first, and at most where it is far.
_STEP: Final = 64 * 1024
_MOST: Final = 8 * 1024 * 1024
_LINE_END: Final = re.compile(rb"(?<!\\)\n")
_HEAD_BYTES: Final = 10
_Part = TypeVar("_Part")


class TableSource(msgspec.Struct, frozen=True):
    """A table of a dump: the ``rows`` that Spark hands to its workers, and ``items``,
    which makes tables of them there: texts do not cross to the JVM and back.

    ``columns``: those of the tables. ``weight``: decompressed bytes, about.
    """

    rows: DataFrame
    items: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]]
    columns: pa.Schema
    weight: int

    def table(self) -> DataFrame:
        """Return the rows of the table."""
        kinds = {"string": "string", "int64": "bigint", "double": "double"}
        return self.mapped(
            _to_batches,
            ", ".join(f"`{field.name}` {kinds[str(field.type)]}" for field in self.columns),
        )

    def mapped(
        self, mapper: Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]], schema: str
    ) -> DataFrame:
        """Return the rows that ``mapper`` makes of the table's rows, in the worker that
        reads them.
        """
        return self.rows.mapInArrow(partial(_map_tables, self.items, mapper), schema)


def _map_tables(
    items: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.Table]],
    mapper: Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    return mapper(items(batches))


def _to_batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from table.to_batches()


def table_source(
    spark: SparkSession,
    dump: Dump,
    name: str,
    columns: Sequence[str],
    feed: str = "auto",
    remote: RemoteFiles | None = None,
) -> TableSource:
    """Return the source of a dump's table: ``columns`` in this order, with the types of
    ``schemas/inputs``, nullable.

    ``feed``: ``direct`` (workers open the files), ``spark`` (Spark reads lines), or
    ``auto``. ``remote``: what opens files on HDFS in the workers; None: the client that
    is installed, if there is one. An action on the result raises DataError (65) for
    damage and for rows that rule 19 does not allow.
    """
    table = input_table(f"{dump.kind}/{name}")
    files = [file for file in dump.tables[name] if file.size]
    schema = arrow_schema(table, columns)
    weight = sum(weigh(file.path, file.size) for file in files)
    read: Callable[..., Iterator[pa.Table]] = partial(
        read_table, table=table, columns=tuple(columns)
    )
    tasks: list[tuple[Any, ...]]
    if feed != "spark" and (remote := remote or client_for(spark, files)) is not None:
        tasks = pack_ranges(files, count_cores(spark))
        items = partial(_read_ranges, tasks, remote, read)
    elif (
        feed == "direct"
        or not files
        or (feed == "auto" and all(is_local(file.path) for file in files))
    ):
        tasks = pack_files(files, count_cores(spark))
        items = partial(_read_files, tasks, read)
    else:
        rows = _through_spark(spark, files)
        return TableSource(rows, partial(_read_rows, read), schema, weight)
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return TableSource(numbers.toDF("number"), items, schema, weight)


def client_for(spark: SparkSession, files: Iterable[InputFile]) -> RemoteFiles | None:
    """Return what opens the files in the workers where all are on HDFS and the client
    is used; otherwise None.
    """
    paths = [file.path for file in files]
    return (
        choose_client(spark) if paths and all(path.startswith(SCHEME) for path in paths) else None
    )


def pack_files(
    files: Iterable[InputFile], cores: int, task_bytes: int = TASK_BYTES
) -> list[tuple[str, ...]]:
    """Return the paths of each task. Tasks have about even size; there are at least as
    many as cores or files.
    """
    weighed = [(weigh(file.path, file.size), file.path) for file in files]
    return _packed(weighed, min(task_bytes, sum(weight for weight, _ in weighed) // max(1, cores)))


def pack_ranges(
    files: Sequence[InputFile],
    cores: int,
    task_bytes: int = TASK_BYTES,
    least_bytes: int = SPARK_TASK_BYTES,
) -> list[tuple[LineRange, ...]]:
    """Return the ranges of each task on a cluster, as :func:`pack_files` does; no task
    is made for less than ``least_bytes`` while others have room.
    """
    ranges = [
        (file.size, part)
        for file in files
        for part in split_file(file.path, file.size, task_bytes)
    ]
    weighed = [
        (weigh(part.path, (size if part.end is None else part.end) - part.start), part)
        for size, part in ranges
    ]
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


def _through_spark(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """Return rows of (file, content, whether it is all of the file): packed files as
    they are, the lines of others.

    Spark knows other packings than we do. It inflates large gzip files.
    """
    from pyspark.sql import functions as F

    packed_files = [file for file in files if _is_passed_whole(file)]
    lines = [file for file in files if not _is_passed_whole(file)]
    parts = [
        read_explicit_files(
            spark,
            kind,
            [
                f"file://{local_path(file.path)}" if is_local(file.path) else file.path
                for file in chosen
            ],
            **options,
        ).select(
            # Lines as bytes: the reader of the table handles lines that are not UTF-8.
            "file_path",
            F.col(column).cast("binary").alias("content"),
            F.lit(kind == "binaryFile").alias("is_whole"),
        )
        for kind, column, chosen, options in (
            ("binaryFile", "content", packed_files, {}),
            ("text", "value", lines, {"lineSep": "\n"}),
        )
        if chosen
    ]
    return reduce(lambda first, right: first.unionAll(right), parts)


def _is_passed_whole(file: InputFile) -> bool:
    is_large_gzip = file.path.endswith(".gz") and file.size > WHOLE_BYTES
    return is_packed_name(file.path) and not is_large_gzip


def _read_files(
    tasks: Sequence[Sequence[str]],
    read: Callable[..., Iterator[pa.Table]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.Table]:
    """Read the files of the tasks whose numbers the input rows hold."""
    for number in first_values(batches):
        for path in tasks[number]:
            try:
                yield from read(local_path(path), name=path)
            except OSError as error:
                kind = NotReady if error.errno in AWAY else DataError
                raise kind(
                    "a file of a dump cannot be read", where=path, found=error.strerror
                ) from None


def _read_ranges(
    tasks: Sequence[Sequence[LineRange]],
    remote: RemoteFiles,
    read: Callable[..., Iterator[pa.Table]],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.Table]:
    """Read the ranges of the tasks whose numbers the input rows hold, opened with ``remote``."""
    for number in first_values(batches):
        for part in tasks[number]:
            with open_lines(remote, part) as stream:
                yield from read(stream, name=range_name(part))


def _read_rows(
    read: Callable[..., Iterator[pa.Table]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    """Parse the (file, content, whether it is whole) rows that Spark has read, file by
    file, as a value may span several lines.
    """
    runs = (run for batch in batches for run in _runs(batch))
    for (file, is_whole), same_file in groupby(runs, key=itemgetter(0)):
        if is_whole:
            for _, contents in same_file:
                for content in contents:
                    yield from read(io.BytesIO(content), name=file)
            continue
        with SpooledTemporaryFile(SPOOL_BYTES) as spool:
            for _, lines in same_file:
                spool.write(b"\n".join(lines) + b"\n")
            spool.seek(0)
            # Spark has decompressed a .gz already.
            yield from read(cast("IO[bytes]", spool), name=file.removesuffix(".gz"))


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, bool], list[bytes]]]:
    """Yield ((file, whether it is whole), contents) for each run of rows of one file,
    in order.
    """
    import pyarrow.compute as pc

    runs = pc.run_end_encode(batch.column(0))
    start = 0
    for file, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        is_whole = batch.column(2)[start].as_py()
        yield (file, is_whole), batch.column(1).slice(start, end - start).to_pylist()
        start = end


def range_name(part: LineRange) -> str:
    """Return what errors call a range: rows count from its first line on."""
    return f"{part.path} from byte {part.start} on" if part.start else part.path


def open_lines(files: RemoteFiles, line_range: LineRange) -> IO[bytes]:
    """Open the lines of a range for reading at any place. Raises what
    :func:`hdfs_errors` says, also while it is read.

    A packed file has no lines: its first range is all of it.
    """
    return cast("IO[bytes]", open_whole(_LinesOf(files, line_range), line_range.path))


class _LinesOf(msgspec.Struct, frozen=True):
    """Opens the lines of a range of a file."""

    files: RemoteFiles
    lines: LineRange

    def open(self, location: str) -> RemoteFile:
        file, start, end = self.files.open(location), self.lines.start, self.lines.end
        size = len(file)
        if not start and end is None:
            return file
        with hdfs_errors(location):
            if unpacker(file.read_range(0, min(_HEAD_BYTES, size))):
                return _FileWindow(file, 0, 0 if start else size)
            begin = _line_start(file, start)
            return _FileWindow(
                file, begin, size if end is None else max(begin, _line_start(file, end))
            )


def _line_start(file: RemoteFile, position: int) -> int:
    """Return where the first line begins that begins at ``position`` or later: behind a
    newline, or at the end.

    A newline behind a ``\\`` belongs to a value, in quotes and outside.
    """
    size = len(file)
    if position <= 0:
        return 0
    # A line begins after a newline, so the byte before ``position`` counts, and the one
    # before that may be a ``\\``.
    at = max(0, min(position, size) - 2)
    searched, step, last = min(position, size) - 1 - at, _STEP, b""
    while at < size:
        piece = last + file.read_range(at, min(step, size - at))
        if match := _LINE_END.search(piece, searched):
            return at - len(last) + match.end()
        at += len(piece) - len(last)
        searched, step, last = 1, min(2 * step, _MOST), piece[-1:]
    return size


class _FileWindow(msgspec.Struct, frozen=True):
    """The bytes of a file from ``begin`` to ``end``, as a file of their own."""

    file: RemoteFile
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def read_range(self, offset: int, count: int) -> bytes:
        return self.file.read_range(self.begin + offset, count)

    def read_range_stream(self, offset: int, count: int) -> Iterator[bytes]:
        return self.file.read_range_stream(self.begin + offset, count)
