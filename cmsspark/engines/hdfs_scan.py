"""The scan of logs on HDFS that Spark's Python workers open themselves (:mod:`cmsspark.filesystems.hdfs`).

Spark still plans who reads what: it packs files into tasks and runs a task where most of its bytes are. It opens no
file. A plain file larger than a task is divided at lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import unquote

from cmsspark.engines.explicit_files import read_explicit_files
from cmsspark.engines.tasks import StreamFiles, Task, TaskContext
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
    spark: SparkSession, stream: StreamFiles, context: TaskContext, files: RemoteFiles, task_bytes: int, schema: str
) -> DataFrame:
    """Return the rows of a stream whose files the workers open with ``files``. See :func:`cmsspark.engines.scan.scan`.

    ``task_bytes``: a larger plain file is divided into tasks of so many bytes.
    """
    ranges = divide(stream, task_bytes)
    divided = {piece.path for piece in ranges}
    undivided = [path for path, _ in stream.files if path not in divided]
    parts = []
    if undivided:
        # Of a file whose content is not asked for, Spark plans the place and reads nothing.
        listed = read_explicit_files(spark, "binaryFile", undivided).select("file_path")
        parts.append(listed.mapInArrow(_HdfsTask(stream, context, files, ()), schema))
    if ranges:
        numbers = spark.range(0, len(ranges), 1, len(ranges))
        parts.append(numbers.mapInArrow(_HdfsTask(stream, context, files, tuple(ranges)), schema))
    return reduce(lambda first, right: first.unionByName(right), parts)


def divide(stream: StreamFiles, task_bytes: int) -> list[LineRange]:
    """Return the ranges of the plain files that are larger than a task: of about even size, the last one open.

    A file that grows or shrinks after it was listed fails the run at its end.
    """
    ranges = []
    for path, size in stream.files:
        if size <= task_bytes or stream.format == "avro" or is_packed_name(path):
            continue
        count = -(-size // task_bytes)
        starts = [size * number // count for number in range(count)]
        ranges += [LineRange(path, start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return ranges


@dataclass(frozen=True)
class _HdfsTask:
    """Opens what the input rows name: the URI of a file, or with ``ranges`` the number of one."""

    stream: StreamFiles
    context: TaskContext
    files: RemoteFiles
    ranges: Sequence[LineRange]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        day = self.stream.earlier_day
        reader = self.context.reader(Task(self.stream.stream, self.stream.format, (), day))
        aggregator = self.context.aggregator(self.stream.stream, is_earlier=day is not None)
        for batch in batches:
            for value in batch.column(0).to_pylist():
                piece = self.ranges[value] if self.ranges else LineRange(unquote(value))
                is_accepted = piece.path in self.context.accepted
                with open_range(self.files, piece, unpacker) as opened:
                    stream = cast("IO[bytes]", opened)
                    for accesses in reader.file(stream, piece.path, accept_damaged=is_accepted):
                        aggregator.add(accesses)
                        yield from self.context.batches(reader, aggregator, is_last=False)
        yield from self.context.batches(reader, aggregator, is_last=True)
