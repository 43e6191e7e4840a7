"""The scan of logs on HDFS that Spark's Python workers open themselves
(:mod:`cmsspark.filesystems.hdfs`).

Spark still plans who reads what: it packs files into tasks and runs a task where most
of its bytes are. It opens no file. A plain file larger than a task is divided at lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import unquote

from cmsspark.engines.explicit_files import read_explicit_files
from cmsspark.engines.tasks import StreamFiles, TaskContext, first_values
from cmsspark.filesystems.hdfs import LineRange, RemoteFiles, open_range
from cmsspark.sources.formats.packings import is_packed_name, unpacker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEME = "hdfs:"


def is_on_hdfs(stream: StreamFiles) -> bool:
    """Return whether all files of a stream are on HDFS, under its own protocol."""
    return bool(stream.files) and all(path.startswith(SCHEME) for path, _ in stream.files)


def scan_hdfs(
    spark: SparkSession,
    stream: StreamFiles,
    context: TaskContext,
    files: RemoteFiles,
    task_bytes: int,
    schema: str,
) -> DataFrame:
    """Return the rows of a stream whose files the workers open with ``files``. See
    :func:`cmsspark.engines.scan.scan`.

    ``task_bytes``: a larger plain file is divided into tasks of so many bytes.
    """
    ranges = divide(stream, task_bytes)
    divided = {piece.path for piece in ranges}
    undivided = [path for path, _ in stream.files if path not in divided]
    parts = []
    if undivided:
        # Of a file whose content is not asked for, Spark plans the place and reads nothing.
        listed = read_explicit_files(spark, "binaryFile", undivided).select("file_path")
        parts.append(listed.mapInArrow(partial(_read_hdfs, stream, context, files, ()), schema))
    if ranges:
        numbers = spark.range(0, len(ranges), 1, len(ranges))
        parts.append(
            numbers.mapInArrow(partial(_read_hdfs, stream, context, files, ranges), schema)
        )
    return reduce(lambda first, right: first.unionByName(right), parts)


def divide(stream: StreamFiles, task_bytes: int) -> list[LineRange]:
    """Return the ranges of the plain files that are larger than a task: of about even
    size, the last one open.

    A file that grows or shrinks after it was listed fails the run at its end.
    """
    files = stream.files if stream.format != "avro" else ()
    ranges = [split_file(path, size, task_bytes) for path, size in files]
    return [line_range for of_file in ranges if len(of_file) > 1 for line_range in of_file]


def split_file(path: str, size: int, task_bytes: int) -> list[LineRange]:
    """Return a file's even ranges, the last one open: one of a packed file, or of one
    no larger than a task.
    """
    count = 1 if is_packed_name(path) else max(1, -(-size // task_bytes))
    starts = [size * number // count for number in range(count)]
    return [
        LineRange(path, start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def _read_hdfs(
    stream: StreamFiles,
    context: TaskContext,
    files: RemoteFiles,
    ranges: Sequence[LineRange],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Open what the input rows name: the URI of a file, or with ``ranges`` the number of one."""
    reader, aggregator = context.open(stream.stream, stream.format, stream.earlier_day)
    for value in first_values(batches):
        piece = ranges[value] if ranges else LineRange(unquote(value))
        is_accepted = piece.path in context.accepted
        with open_range(files, piece, unpacker) as opened:
            opened_stream = cast("IO[bytes]", opened)
            yield from context.read_file(
                opened_stream, piece.path, reader, aggregator, accept_damaged=is_accepted
            )
    yield from context.batches(reader, aggregator, is_last=True)
