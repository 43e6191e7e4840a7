"""The files of a Rucio dump in Spark: tasks read ranges of them. Each table is read once.

A worker opens the files that it can reach, in ranges: on a disk, and on HDFS where the
extra ``cmsspark[hdfs]`` is installed. Spark reads all others, a task for each file, and
passes their bytes piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Final, cast

from cmsspark.dumps.rucio_scan import WEIGHT, OpenRange, RucioScan, open_local
from cmsspark.engines.explicit_files import read_explicit_files
from cmsspark.engines.hdfs_scan import SCHEME
from cmsspark.engines.tasks import first_values
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.hdfs import RemoteFiles, choose_client, open_whole
from cmsspark.filesystems.storage import is_local
from cmsspark.sources.formats.avro_ranges import open_container

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Bytes of a file that are read with one numbering of names. A worker that opens the
#: files reads them in one task.
RANGE_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True)
class RangeSource:
    """Files of Rucio: the ``rows`` that Spark hands to its workers, and ``items``,
    which makes ranges of them.
    """

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
    if not files or (
        feed != "spark" and (feed == "direct" or is_local_dump or client is not None)
    ):
        starts = [
            (table, file, first)
            for table, file in files
            for first in range(0, file.size, range_bytes)
        ]
        ranges = [(table, file.path, first) for table, file, first in starts]
        if client is None:
            numbers = spark.range(0, len(ranges), 1, max(1, len(ranges))).toDF("number")
        else:
            middles = [
                (file.path, (first + min(first + range_bytes, file.size)) // 2)
                for _, file, first in starts
            ]
            numbers = numbered_tasks(spark, middles)
        return [
            RangeSource(numbers, partial(_open_ranges, ranges, range_bytes, client), scan.weight)
        ], 0
    sources = []
    for table in sorted({table for table, _ in files}):
        listed = [file for of_table, file in files if of_table == table]
        rows = _pieces(spark, [file.path for file in listed])
        weight = WEIGHT * sum(file.size for file in listed)
        sources.append(RangeSource(rows, partial(_open_pieces, table, range_bytes), weight))
    return sources, max(file.size for _, file in files)


def _pieces(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the bytes of files between newlines, in order, with the file's path and size."""
    from pyspark.sql import functions as F

    pieces = read_explicit_files(spark, "text", paths, lineSep="\n")
    return pieces.select("file_path", F.col("file_size"), F.col("value").cast("binary"))


def numbered_tasks(spark: SparkSession, bytes_of_tasks: Sequence[tuple[str, int]]) -> DataFrame:
    """Return the rows 0, 1, … (column ``number``), a task each, which prefers the hosts
    that store one of its bytes.

    ``bytes_of_tasks``: the path of a file, and a position in it, such as the middle of
    what the task reads.
    """
    files = HadoopFiles(spark)
    return place_tasks(
        spark, [files.hosts_at(path, position) for path, position in bytes_of_tasks]
    )


def place_tasks(spark: SparkSession, hosts: Sequence[tuple[str, ...]]) -> DataFrame:
    """Return the rows 0, 1, … (column ``number``), each a task with the hosts that it prefers."""
    from pyspark.sql import DataFrame

    if not hosts:
        return spark.range(0).toDF("number")
    jvm: Any = spark.sparkContext._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    sequences = {names: to_seq(list(names)) for names in set(hosts)}
    tasks = [jvm.scala.Tuple2(number, sequences[names]) for number, names in enumerate(hosts)]
    context: Any = spark.sparkContext._jsc
    # Only this method of Spark takes preferred hosts; a class tag comes from any RDD.
    numbers = context.sc().makeRDD(to_seq(tasks), context.emptyRDD().classTag())
    session: Any = spark._jsparkSession
    rows = session.createDataset(numbers, jvm.org.apache.spark.sql.Encoders.INT())
    return DataFrame(rows.toDF(), spark).toDF("number")


def _open_ranges(
    ranges: Sequence[tuple[str, str, int]],
    range_bytes: int,
    remote: RemoteFiles | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[OpenRange]:
    """Open the ranges of files whose numbers the input rows hold; those of HDFS with ``remote``."""
    for number in first_values(batches):
        table, path, first = ranges[number]
        with open_local(path) if remote is None else _open_remote(remote, path) as stream:
            yield OpenRange(table, stream, path, first, first + range_bytes)


@contextmanager
def _open_remote(files: RemoteFiles, path: str) -> Iterator[IO[bytes]]:
    with open_whole(files, path) as remote:
        yield cast("IO[bytes]", remote)


def _open_pieces(
    table: str, range_bytes: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[OpenRange]:
    """Open whole files of a table, of rows (path, size, bytes between newlines), range
    after range.
    """
    pieces = (piece for batch in batches for piece in _runs(batch))
    for (path, size), of_file in groupby(pieces, key=itemgetter(0)):
        forward = ForwardStream(size, (content for _, content in of_file))
        stream = cast("IO[bytes]", forward)
        container = open_container(stream, path)
        for first in range(0, size, range_bytes):
            forward.release(first)
            yield OpenRange(table, stream, path, first, first + range_bytes, container)


class ForwardStream:
    """Bytes that can be read from the last released position on. ``size``: of the file;
    later bytes are not of it.
    """

    def __init__(self, size: int, pieces: Iterable[bytes]) -> None:
        self._size = size
        self._pieces: Iterator[bytes] = iter(pieces)
        self._buffer = bytearray()
        #: Where the buffer begins, and the position of the next read.
        self._begin = 0
        self._at = 0

    def seek(self, at: int, whence: int = 0) -> int:
        """Set the position: from the start, or with ``whence`` 1 from the current one."""
        self._at = at + (self._at if whence == 1 else 0)
        return self._at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; fewer at the end, and where the pieces end before it.

        Raises ValueError for released ones.
        """
        if self._at < self._begin:
            raise ValueError(f"byte {self._at} was released; the stream begins at {self._begin}")
        last = self._size if count < 0 else min(self._size, self._at + count)
        while self._begin + len(self._buffer) < last:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._buffer += piece
        content = bytes(self._buffer[self._at - self._begin : max(0, last - self._begin)])
        self._at += len(content)
        return content

    def release(self, before: int) -> None:
        """Forget the bytes before a position; those that have not come yet are dropped
        when they come.
        """
        while self._begin + len(self._buffer) <= before:
            self._begin += len(self._buffer)
            self._buffer = bytearray()
            piece = next(self._pieces, None)
            if piece is None:
                self._begin = max(self._begin, before)
                return
            self._buffer += piece
        del self._buffer[: max(0, before - self._begin)]
        self._begin = max(self._begin, before)


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
