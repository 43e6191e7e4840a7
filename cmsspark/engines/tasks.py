"""The tasks of a scan: how files are packed into tasks, and what a task does with its
files. Knows no Spark.

Both runners use this module. A task decodes the bytes of its files, bins the records,
attaches their datasets and pre-aggregates the accesses, so that few rows leave the
task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import msgspec

from cmsspark.base.access import AccessBatch
from cmsspark.base.errors import DataError, NotAllowed, NotReady
from cmsspark.counting.catalogue import Catalogue, Replicas
from cmsspark.counting.crab_rows import CrabAggregator, HashedCrabAggregator
from cmsspark.counting.folded_accesses import ACCESS_COLUMNS, AccessRows, Fold, FoldedAccesses
from cmsspark.counting.htcondor_jobs import EarlierJobs, JobAggregator
from cmsspark.counting.pre_aggregate import (
    COLUMNS,
    HASH_COLUMNS,
    HashAggregator,
    StreamAggregator,
    record_batch,
)
from cmsspark.engines.broadcast_files import local_folder
from cmsspark.engines.job_work import HtcondorMergeSpec
from cmsspark.engines.merge_task import pack_batch
from cmsspark.filesystems.storage import AWAY, local_path
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.sources.formats.fast_json import Groups
from cmsspark.sources.formats.lines import is_packed_name
from cmsspark.sources.registry import STREAMS_OF_JOB_ROWS, STREAMS_OF_JOBS

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.sources.folders import DayInput

#: Tasks for each core: a core that finishes early takes another task.
ROUNDS: Final = 2
#: Bytes of decompressed data for each byte of a packed file, about.
GZIP_FACTOR: Final = 6
_SPARK_TYPES: Final = {"long": "bigint"}


class TaskReader(Protocol):
    """The reader that a task uses (``cmsspark.sources.reader``)."""

    @property
    def groups(self) -> Groups: ...
    def file(
        self, stream: IO[bytes], file: str, *, accept_damaged: bool
    ) -> Iterator[AccessBatch]: ...
    def chunk(self, chunk: bytes, file: str) -> AccessBatch: ...
    def notes(self) -> list[tuple[str, str, int, str]]: ...
    def keep_times(self) -> None: ...


class StreamFiles(msgspec.Struct, frozen=True):
    """The files of a stream: the format, as the reader names it, and (path, bytes) of each file."""

    stream: str
    format: str
    files: tuple[tuple[str, int], ...]
    #: The day of the files where it is not the day that is counted: of these jobs only
    #: the ids are read.
    earlier_day: date | None = None

    @classmethod
    def from_input(cls, source: DayInput, earlier_day: date | None = None) -> StreamFiles:
        """Return the files of a stream's input."""
        files = tuple((file.path, file.size) for file in source.files)
        return cls(source.stream, source.format_name, files, earlier_day)


class Task(msgspec.Struct, frozen=True):
    """Files of one stream that one task reads."""

    stream: str
    format: str
    paths: tuple[str, ...]
    earlier_day: date | None = None
    #: Decompressed bytes of the files, about.
    weight: int = 0
    #: Bytes of the files as they are stored.
    size: int = 0

    @property
    def has_job_rows(self) -> bool:
        """Whether its rows are of jobs, which are merged apart (see ``crab_rows``)."""
        return self.stream in STREAMS_OF_JOB_ROWS


class TaskContext(msgspec.Struct, frozen=True):
    """What each task needs besides its files. It is pickled and sent to the workers."""

    day: date
    #: The folders of the snapshots. None leaves the datasets and remoteness to the shuffle join.
    catalogue: str | None
    replicas: str | None
    pseudonyms: Pseudonyms
    make_reader: Callable[[str, str, date], TaskReader]
    #: One row for each access instead of pre-aggregated rows.
    single_accesses: bool = False
    #: How the accesses of a user's job become its table.
    fold: Fold | None = None
    #: Damaged files that are read up to the damage.
    accepted: frozenset[str] = frozenset()
    #: The merge of jobs, where a stream has any. Tasks do not need it.
    jobs: HtcondorMergeSpec | None = None
    #: Makes the aggregator of a feed, of (its name, whether its files are of the day
    #: before); its rows have ``kernel.jobs.JOB_COLUMNS``.
    feed_aggregator: Callable[[str, bool], StreamAggregator] | None = None
    #: Numbers of the partitions of Spark's merge, for which rows leave packed; without
    #: them they leave as they are.
    part_numbers: Sequence[int] = ()

    def open(
        self, stream: str, format_name: str, earlier_day: date | None = None
    ) -> tuple[TaskReader, StreamAggregator]:
        """Return a new reader of a stream's files, and a new aggregator; of an earlier
        day only for the ids of jobs.
        """
        reader = self.make_reader(stream, format_name, earlier_day or self.day)
        if self.fold is not None and self.fold.needs_times:
            reader.keep_times()
        return reader, self.aggregator(stream, is_earlier=earlier_day is not None)

    def read_file(
        self,
        stream: IO[bytes],
        path: str,
        reader: TaskReader,
        aggregator: StreamAggregator,
        *,
        accept_damaged: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Read a file into the aggregator and yield the rows that can leave at once.
        Raises DataError (65).
        """
        aggregator.begin_file(path)
        for batch in reader.file(stream, path, accept_damaged=accept_damaged):
            aggregator.add(batch)
            yield from self.batches(reader, aggregator, is_last=False)

    def aggregator(self, stream: str, *, is_earlier: bool = False) -> StreamAggregator:
        """Return a new aggregator for the accesses or jobs of a stream. ``is_earlier``:
        only the ids of jobs.
        """
        if self.feed_aggregator is not None:
            return self.feed_aggregator(stream, is_earlier)
        if stream in STREAMS_OF_JOBS:
            return EarlierJobs(stream) if is_earlier else JobAggregator(stream)
        has_job_rows = stream in STREAMS_OF_JOB_ROWS
        if self.catalogue is None:
            return (HashedCrabAggregator if has_job_rows else HashAggregator)(stream)
        if self.fold is not None:
            catalogue = _catalogue(local_folder(self.catalogue))
            return FoldedAccesses(stream, catalogue, fold=self.fold)
        kind: type[StreamAggregator] = CrabAggregator if has_job_rows else StreamAggregator
        kind = AccessRows if self.single_accesses else kind
        return kind(stream, _catalogue(local_folder(self.catalogue)))

    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return (name, type) of each column of the result."""
        if self.single_accesses:
            return ACCESS_COLUMNS
        return COLUMNS if self.catalogue else (*COLUMNS, *HASH_COLUMNS)

    def schema(self) -> str:
        """Return the columns as a Spark schema."""
        return spark_schema(self.columns())

    def batches(
        self,
        reader: TaskReader,
        aggregator: StreamAggregator,
        *,
        is_last: bool,
        dictionaries: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that can leave the task now; with ``is_last`` all aggregated
        rows, bins and notes.

        ``dictionaries``: text columns may be dictionary arrays.
        """
        replicas = _replicas(local_folder(self.replicas)) if self.replicas else None
        arguments = (reader.groups, replicas, self.pseudonyms.pseudonym)
        last: tuple[dict[str, Any], ...] = ()
        if is_last:
            rows = aggregator.rows(*arguments)
            last = (rows, aggregator.site_pairs.rows(aggregator.stream), aggregator.bin_rows())
        if is_last and not self.single_accesses:
            last = (*last, aggregator.note_rows(reader.notes(), reader.groups))
        for rows in (aggregator.drain(*arguments), *last):
            if rows:
                columns = aggregator.columns or self.columns()
                if self.part_numbers:
                    yield from pack_batch(
                        record_batch(rows, columns, dictionaries=True), self.part_numbers
                    )
                else:
                    yield record_batch(rows, columns, dictionaries=dictionaries)


def spark_schema(columns: Iterable[tuple[str, str]]) -> str:
    """Return columns (name, type) as a Spark schema."""
    return ", ".join(f"`{name}` {_SPARK_TYPES.get(kind, kind)}" for name, kind in columns)


@cache
def _catalogue(folder: Path) -> Catalogue:
    # A worker process runs many tasks: it maps the catalogue once.
    return Catalogue(folder)


@cache
def _replicas(folder: Path) -> Replicas:
    return Replicas(folder)


def total_weight(streams: Iterable[StreamFiles]) -> int:
    """Return the decompressed bytes of the streams' files, about."""
    return sum(weigh(path, size) for stream in streams for path, size in stream.files)


def weigh(path: str, size: int) -> int:
    """Return the decompressed bytes of a file of ``size`` bytes, about."""
    return size * (GZIP_FACTOR if is_packed_name(path) else 1)


def pack_tasks(streams: Iterable[StreamFiles], cores: int, task_bytes: int) -> list[Task]:
    """Pack the files into tasks of about even size, the largest first, after those of
    streams whose rows are merged apart. A task has files of one stream.
    """
    weighed = [
        (stream, [(path, weigh(path, size), size) for path, size in stream.files])
        for stream in streams
    ]
    limit = max(
        1, min(task_bytes, total_weight(stream for stream, _ in weighed) // max(1, cores * ROUNDS))
    )
    packed: list[Task] = []
    for stream, files in weighed:
        paths: list[str] = []
        weight = stored = 0
        make = partial(Task, stream.stream, stream.format, earlier_day=stream.earlier_day)
        for path, more, size in sorted(files, key=lambda file: (-file[1], file[0])):
            if paths and weight + more > limit:
                packed.append(make(tuple(paths), weight=weight, size=stored))
                paths, weight, stored = [], 0, 0
            paths.append(path)
            weight += more
            stored += size
        if paths:
            packed.append(make(tuple(paths), weight=weight, size=stored))
    return sorted(packed, key=lambda task: (not task.has_job_rows, -task.weight))


def first_values(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the values of the first column, such as the numbers of tasks that Spark
    hands to a worker.
    """
    for batch in batches:
        yield from batch.column(0).to_pylist()


def read_task(
    task: Task, context: TaskContext, reader: TaskReader, aggregator: StreamAggregator
) -> Iterator[pa.RecordBatch]:
    """Read the files of a task into ``aggregator`` and yield the rows that can leave at once.

    Raises DataError (65), NotAllowed (77), NotReady (75) where the file system is away.
    """
    for path in task.paths:
        try:
            with open(local_path(path), "rb") as stream:
                yield from context.read_file(
                    stream, path, reader, aggregator, accept_damaged=path in context.accepted
                )
        except PermissionError as error:
            raise NotAllowed(
                "a log file cannot be read", where=path, found=error.strerror
            ) from None
        except OSError as error:
            kind = NotReady if error.errno in AWAY else DataError
            raise kind("a log file cannot be read", where=path, found=error.strerror) from None
