"""The scan: decoders run inside Spark's tasks, and only folded rows cross to the JVM.

Files that a worker can open are read by the worker (``direct``); others, as on HDFS, are read by Spark and handed
over as lines (``spark``). Both ways end in the same rows, whose columns are ``fold.COLUMNS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

from cmsspark.access import AccessBatch, Group
from cmsspark.errors import DataError, NotAllowed, NotReady
from cmsspark.kernel.access_rows import ACCESS_COLUMNS, AccessRows
from cmsspark.kernel.catalogue import Catalogue, Replicas
from cmsspark.kernel.hash_aggregator import HASH_COLUMNS, HashAggregator
from cmsspark.kernel.pre_aggregate import COLUMNS, StreamAggregator, record_batch
from cmsspark.pseudonyms import Pseudonyms
from cmsspark.runners.read_exact_files import load
from cmsspark.runners.shipped import place
from cmsspark.runners.shipped import ship as ship  # the callers' name for it
from cmsspark.storage import AWAY, is_local, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Bytes of input a task of Spark, at most: some 20 s. Each task hands over its own groups, so that few and large tasks
#: hand over fewer rows.
TASK_BYTES: Final = 2_000_000_000
#: Bytes of input a task of Spark where Spark reads the files, at least: starting a worker costs as much as reading it.
SPARK_TASK_BYTES: Final = 128_000_000
#: Tasks for each core: a quick one makes up for a slow one.
ROUNDS: Final = 2
#: Files of a stream that the driver looks up one by one; more are looked up by a Spark job of so many tasks at most.
LISTED_BY_DRIVER: Final = 2_000
_LISTING_TASKS: Final = 100
#: How much wider gzip is when it is open.
GZIP_FACTOR: Final = 6


class TaskReader(Protocol):
    """What a task reads with (``cmsspark.sources.reader``)."""

    @property
    def groups(self) -> list[Group]: ...
    def file(self, stream: IO[bytes], file: str, *, accept_damaged: bool) -> Iterator[AccessBatch]: ...
    def chunk(self, chunk: bytes, file: str) -> AccessBatch: ...
    def notes(self) -> list[tuple[str, str, int, str]]: ...


@dataclass(frozen=True)
class StreamFiles:
    """A stream's files: ``form`` as its reader knows it, and (path, bytes) of each."""

    stream: str
    form: str
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Task:
    """Files of one stream that one task reads."""

    stream: str
    form: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class TaskContext:
    """What each task needs besides its files; goes to the workers with the function."""

    day: date
    #: The snapshots' folders; None leaves datasets and remoteness to the shuffle join.
    catalogue: str | None
    replicas: str | None
    pseudonyms: Pseudonyms
    make_reader: Callable[[str, str, date], TaskReader]
    #: One row for each access instead of folded rows.
    unfolded: bool = False
    #: Files that are read as far as they are intact.
    accepted: frozenset[str] = frozenset()

    def fold(self, stream: str) -> StreamAggregator:
        """What a task folds a stream's accesses with."""
        if self.catalogue is None:
            return HashAggregator(stream)
        kind = AccessRows if self.unfolded else StreamAggregator
        return kind(stream, _catalogue(place(self.catalogue)))

    def columns(self) -> tuple[tuple[str, str], ...]:
        """(name, type word) of the result's columns."""
        if self.unfolded:
            return ACCESS_COLUMNS
        return COLUMNS if self.catalogue else (*COLUMNS, *HASH_COLUMNS)

    def schema(self) -> str:
        """The columns as Spark writes them."""
        words = {"string": "string", "long": "bigint", "boolean": "boolean"}
        return ", ".join(f"`{name}` {words[kind]}" for name, kind in self.columns())

    def batches(
        self, reader: TaskReader, fold: StreamAggregator, *, is_last: bool, dictionaries: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """What can leave the task now; the folded rows and the bins when it ends. ``dictionaries``: texts of many rows
        may come as such.
        """
        replicas = _replicas(place(self.replicas)) if self.replicas else None
        given = (reader.groups, replicas, self.pseudonyms.of)
        last = (fold.rows(*given), fold.bin_rows()) if is_last else ()
        if is_last and not self.unfolded:
            last = (*last, fold.note_rows(reader.notes()))
        for rows in (fold.drain(*given), *last):
            if rows:
                yield record_batch(rows, self.columns(), dictionaries=dictionaries)


@cache
def _catalogue(folder: Path) -> Catalogue:
    # A worker process runs many tasks: what is mapped once stays mapped.
    return Catalogue(folder)


@cache
def _replicas(folder: Path) -> Replicas:
    return Replicas(folder)


def weight_of(streams: Iterable[StreamFiles]) -> int:
    """Bytes of the streams' files when they are unpacked, about."""
    return sum(_weight(path, size) for stream in streams for path, size in stream.files)


def _weight(path: str, size: int) -> int:
    return size * (GZIP_FACTOR if path.endswith(".gz") else 1)


def cores_of(spark: SparkSession) -> int:
    """The cores that the application may come to have."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return int(spark.sparkContext.defaultParallelism)
    most = conf.get("spark.dynamicAllocation.maxExecutors", "")
    return int(most or 1) * int(conf.get("spark.executor.cores", "1") or 1)


def pack(streams: Iterable[StreamFiles], cores: int, task_bytes: int = TASK_BYTES) -> list[Task]:
    """The files as tasks of about even size, the largest first; a task has files of one stream."""
    weighed = [(stream, [(path, _weight(path, size)) for path, size in stream.files]) for stream in streams]
    most = max(1, min(task_bytes, weight_of(stream for stream, _ in weighed) // max(1, cores * ROUNDS)))
    packed: list[tuple[int, Task]] = []
    for stream, files in weighed:
        paths: list[str] = []
        weight = 0
        for path, size in sorted(files, key=lambda file: (-file[1], file[0])):
            if paths and weight + size > most:
                packed.append((weight, Task(stream.stream, stream.form, tuple(paths))))
                paths, weight = [], 0
            paths.append(path)
            weight += size
        if paths:
            packed.append((weight, Task(stream.stream, stream.form, tuple(paths))))
    return [task for _, task in sorted(packed, key=lambda pair: -pair[0])]


def scan(spark: SparkSession, streams: Sequence[StreamFiles], context: TaskContext, feed: str = "auto") -> DataFrame:
    """The accesses of ``streams``, folded in each task, with their bins and quarantined records.

    One row for each (task, stream, dataset, site, app, user), kind ``access``; rows of kind ``bin`` count what fell
    where, rows of kind ``quarantine`` hold malformed records. Raises DataError (65) for a damaged file, when run.
    """
    ways = {stream: feed if feed != "auto" else _feed_of(stream) for stream in streams}
    parts = []
    direct = [stream for stream in streams if ways[stream] == "direct"]
    if direct:
        tasks = pack(direct, cores_of(spark))
        numbered = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        parts.append(numbered.mapInArrow(_DirectTask(tasks, context), context.schema()))
    _set_sizes(spark, weight_of(streams))
    for stream in streams:
        if ways[stream] == "spark":
            parts.append(_through_spark(spark, stream, context))
    return reduce(lambda left, right: left.unionByName(right), parts)


def _set_sizes(spark: SparkSession, weight: int) -> None:
    """Set the size of tasks in which Spark reads the files of a day of ``weight`` bytes, and who looks the files up."""
    size = max(SPARK_TASK_BYTES, min(TASK_BYTES, weight // (cores_of(spark) * ROUNDS)))
    for name, value in {
        "spark.sql.files.maxPartitionBytes": size,
        # Else it is the number of cores that there are now, which on YARN is that of the first executor.
        "spark.sql.files.minPartitionNum": 1,
        "spark.sql.sources.parallelPartitionDiscovery.threshold": LISTED_BY_DRIVER,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": _LISTING_TASKS,
    }.items():
        spark.conf.set(name, str(value))


def _feed_of(stream: StreamFiles) -> str:
    return "direct" if all(is_local(path) for path, _ in stream.files) else "spark"


@dataclass(frozen=True)
class _DirectTask:
    """Reads the files that each input row names by its number."""

    tasks: list[Task]
    context: TaskContext

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.run(self.tasks[number])

    def run(self, task: Task) -> Iterator[pa.RecordBatch]:
        reader = self.context.make_reader(task.stream, task.form, self.context.day)
        fold = self.context.fold(task.stream)
        yield from read_task(task, self.context, reader, fold)
        yield from self.context.batches(reader, fold, is_last=True)


def read_task(task: Task, context: TaskContext, reader: TaskReader, fold: StreamAggregator) -> Iterator[pa.RecordBatch]:
    """Read a task's files into ``fold``; yields what can leave at once. Raises DataError (65), NotAllowed (77)."""
    for path in task.paths:
        try:
            with open(local_path(path), "rb") as stream:
                for batch in reader.file(stream, path, accept_damaged=path in context.accepted):
                    fold.add(batch)
                    yield from context.batches(reader, fold, is_last=False)
        except PermissionError as error:
            raise NotAllowed("a log file cannot be read", where=path, found=error.strerror) from None
        except OSError as error:
            kind = NotReady if error.errno in AWAY else DataError
            raise kind("a log file cannot be read", where=path, found=error.strerror) from None


@dataclass(frozen=True)
class _SparkTask:
    """Folds the rows (file, value) that Spark has read: a line each, or a whole file each."""

    stream: str
    form: str
    context: TaskContext
    is_whole: bool
    accept_damaged: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import io

        reader = self.context.make_reader(self.stream, self.form, self.context.day)
        fold = self.context.fold(self.stream)
        for batch in batches:
            files, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            if self.is_whole:
                for file, value in zip(files, values, strict=True):
                    for found in reader.file(io.BytesIO(value), file, accept_damaged=self.accept_damaged):
                        fold.add(found)
                        yield from self.context.batches(reader, fold, is_last=False)
            elif values:
                # A batch may hold the end of one file and the begin of the next; only messages name files.
                fold.add(reader.chunk(b"\n".join(values) + b"\n", files[0]))
                yield from self.context.batches(reader, fold, is_last=False)
        yield from self.context.batches(reader, fold, is_last=True)


def _through_spark(spark: SparkSession, stream: StreamFiles, context: TaskContext) -> DataFrame:
    from pyspark.sql import functions as F

    parts = []
    accepted = [path for path, _ in stream.files if path in context.accepted]
    if accepted:
        # Spark's own readers fail on damage: these come whole.
        whole = load(spark, "binaryFile", accepted).select("file_path", "content")
        parts.append(whole.mapInArrow(_SparkTask(stream.stream, stream.form, context, True, True), context.schema()))
    paths = [path for path, _ in stream.files if path not in context.accepted]
    is_avro = stream.form == "avro"
    if paths and is_avro:
        rows = load(spark, "binaryFile", paths).select("file_path", "content")
    elif paths:
        rows = load(spark, "text", paths, lineSep="\n").select("file_path", F.col("value").cast("binary"))
    if paths:
        parts.append(rows.mapInArrow(_SparkTask(stream.stream, stream.form, context, is_avro), context.schema()))
    return reduce(lambda left, right: left.unionByName(right), parts)
