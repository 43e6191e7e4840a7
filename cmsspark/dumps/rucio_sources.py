"""The files of a Rucio dump in Spark: tasks read ranges of them. Each table is read once.

A worker opens the files that it can reach, in ranges: on a disk, and on HDFS where the extra ``cmsspark[hdfs]`` is
installed. Spark reads all others, a task for each file, and passes their bytes piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Final, cast

from cmsspark.dumps.forward_stream import ForwardStream
from cmsspark.dumps.rucio_scan import WEIGHT, OpenRange, RucioScan, open_local
from cmsspark.engines.explicit_files import read_explicit_files
from cmsspark.engines.hdfs_scan import SCHEME
from cmsspark.engines.located_tasks import numbered_tasks
from cmsspark.filesystems.hdfs import RemoteFiles, choose_client, open_whole
from cmsspark.filesystems.storage import is_local
from cmsspark.sources.formats.avro_ranges import open_container

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Bytes of a file that are read with one numbering of names. A worker that opens the files reads them in one task.
RANGE_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True)
class RangeSource:
    """Files of Rucio: the ``rows`` that Spark hands to its workers, and ``items``, which makes ranges of them."""

    rows: DataFrame
    items: Callable[[Iterable[pa.RecordBatch]], Iterator[OpenRange]]
    weight: int


def range_sources(
    spark: SparkSession, scan: RucioScan, feed: str, remote: RemoteFiles | None, range_bytes: int
) -> tuple[list[RangeSource], int]:
    """Return the sources of a dump, and the bytes of the largest file that Spark must not divide.

    ``feed`` and ``remote``: as of :class:`cmsspark.dumps.spark_transport.SparkTransport`.
    """
    files = scan.files
    is_hdfs = all(file.path.startswith(SCHEME) for _, file in files)
    client = (remote or choose_client(spark)) if is_hdfs and files else None
    is_local_dump = all(is_local(file.path) for _, file in files)
    if not files or (feed != "spark" and (feed == "direct" or is_local_dump or client is not None)):
        starts = [(table, file, first) for table, file in files for first in range(0, file.size, range_bytes)]
        ranges = [(table, file.path, first) for table, file, first in starts]
        if client is None:
            numbers = spark.range(0, len(ranges), 1, max(1, len(ranges))).toDF("number")
        else:
            middles = [(file.path, (first + min(first + range_bytes, file.size)) // 2) for _, file, first in starts]
            numbers = numbered_tasks(spark, middles)
        return [RangeSource(numbers, _ReadRanges(ranges, range_bytes, client), scan.weight)], 0
    sources = []
    for table in sorted({table for table, _ in files}):
        listed = [file for of_table, file in files if of_table == table]
        rows = _pieces(spark, [file.path for file in listed])
        weight = WEIGHT * sum(file.size for file in listed)
        sources.append(RangeSource(rows, _ReadPieces(table, range_bytes), weight))
    return sources, max(file.size for _, file in files)


def _pieces(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the bytes of files between newlines, in order, with the file's path and size."""
    from pyspark.sql import functions as F

    pieces = read_explicit_files(spark, "text", paths, lineSep="\n")
    return pieces.select("file_path", F.col("file_size"), F.col("value").cast("binary"))


@dataclass(frozen=True)
class _ReadRanges:
    """Opens the ranges of files whose numbers the input rows hold; those of HDFS with ``remote``."""

    ranges: list[tuple[str, str, int]]
    range_bytes: int
    remote: RemoteFiles | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[OpenRange]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                table, path, first = self.ranges[number]
                with open_local(path) if self.remote is None else _open_remote(self.remote, path) as stream:
                    yield OpenRange(table, stream, path, first, first + self.range_bytes)


@contextmanager
def _open_remote(files: RemoteFiles, path: str) -> Iterator[IO[bytes]]:
    with open_whole(files, path) as remote:
        yield cast("IO[bytes]", remote)


@dataclass(frozen=True)
class _ReadPieces:
    """Reads whole files of a table, of rows (path, size, bytes between newlines), range after range."""

    table: str
    range_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[OpenRange]:
        pieces = (piece for batch in batches for piece in _runs(batch))
        for (path, size), of_file in groupby(pieces, key=itemgetter(0)):
            forward = ForwardStream(size, (content for _, content in of_file))
            stream = cast("IO[bytes]", forward)
            container = open_container(stream, path)
            for first in range(0, size, self.range_bytes):
                forward.release(first)
                yield OpenRange(self.table, stream, path, first, first + self.range_bytes, container)


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
