"""The scan on one host without Spark: worker processes run the same tasks.

No task is retried: a process that fails ends the scan. So each process uses one
aggregator for each stream through all of its tasks, and returns the aggregated rows
once, when no task is left. Rows of jobs, whose tasks come first, leave with the first
task of another stream, so that they are merged while the rest is read.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec
import numpy as np

from cmsspark.base.errors import CmssparkError, InputMissing, NotReady, as_ours
from cmsspark.base.memory import trim
from cmsspark.base.self_metrics import LiveCounters, StageTimes
from cmsspark.base.text.progress_line import ProgressLine
from cmsspark.counting.pre_aggregate import StreamAggregator
from cmsspark.engines.tasks import Task, TaskContext, TaskReader, read_task
from cmsspark.filesystems.storage import unreadable
from cmsspark.sources.registry import STREAMS_OF_JOB_ROWS

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    import pyarrow as pa
    from pyspark.sql import SparkSession


#: Bytes of input for each task: small enough that no process waits long for another at the end.
TASK_BYTES: Final = 64_000_000


T = TypeVar("T")
R = TypeVar("R")


class _Call(msgspec.Struct, frozen=True):
    """A call of a function: work other than a task of the scan."""

    function: Callable[[Any], Any]
    item: Any


class _Rows(msgspec.Struct, frozen=True):
    """Rows as a pickle; so many bytes of each of its buffers follow on the pipe."""

    pickled: bytes
    sizes: list[int]

    @classmethod
    def send(cls, pipe: Connection, batch: pa.RecordBatch) -> None:
        """Send rows without copies of their buffers in this process."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(batch, 5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        pipe.send(cls(pickled, [part.nbytes for part in parts]))
        for part in parts:
            while part:
                part = part[os.write(pipe.fileno(), part) :]

    def receive(self, pipe: Connection) -> pa.RecordBatch:
        """Return the rows, over buffers that are read once. Raises EOFError."""
        buffers = []
        for size in self.sizes:
            buffer = np.empty(size, np.uint8)
            buffers.append(buffer)
            part = buffer.data
            while part:
                count = os.readv(pipe.fileno(), [part])
                if not count:
                    raise EOFError
                part = part[count:]
        # Sent by a process of this pool.
        batch: pa.RecordBatch = pickle.loads(self.pickled, buffers=buffers)  # noqa: S301
        return batch


class _TaskDone(msgspec.Struct, frozen=True):
    """A process finished a task and wants another. ``records``: all that it has read so far."""

    records: int


class WorkerFailed(Exception):
    """An unexpected exception in a worker process. Its text is the traceback of that process."""


class WorkerState(msgspec.Struct):
    """The readers and aggregators of one process, from its first task to its last."""

    context: TaskContext
    _open: dict[tuple[str, str, date | None], tuple[TaskReader, StreamAggregator]] = msgspec.field(
        default_factory=dict
    )
    _of_ended: int = 0

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Read the files of the task and yield the rows that must leave before the end."""
        if not task.has_job_rows:
            yield from self.end([key for key in self._open if key[0] in STREAMS_OF_JOB_ROWS])
        key = (task.stream, task.format, task.earlier_day)
        if key not in self._open:
            trim()
            self._open[key] = self.context.open(*key)
        reader, aggregator = self._open[key]
        yield from read_task(task, self.context, reader, aggregator)

    @property
    def records(self) -> int:
        """Records that this process has read."""
        return self._of_ended + sum(
            aggregator.bins["read"] for _, aggregator in self._open.values()
        )

    def end(
        self, keys: Iterable[tuple[str, str, date | None]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the aggregated rows of streams, all without ``keys``."""
        # The largest aggregator comes last, when the memory of the others is free.
        for key in sorted(
            self._open if keys is None else keys, key=lambda key: self._open[key][1].rows_in_memory
        ):
            trim()
            reader, aggregator = self._open.pop(key)
            self._of_ended += aggregator.bins["read"]
            yield from self.context.batches(reader, aggregator, is_last=True, dictionaries=True)


_BLOCKED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerPool:
    """Worker processes that wait for tasks. Fork them early, while this process has few
    threads and little memory.
    """

    def __init__(self, count: int) -> None:
        self._members: list[tuple[ForkProcess, Connection]] = []
        context = multiprocessing.get_context("fork")
        for _ in range(max(1, count)):
            parent_end, child_end = context.Pipe()
            # A child must close the parent's ends of the pipes; else it would not end
            # when the parent is gone.
            parent_ends = [pipe for _, pipe in self._members] + [parent_end]
            member = context.Process(target=_serve, args=(child_end, parent_ends), daemon=True)
            # A signal that arrives during the fork is delivered when the child can handle it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
            try:
                member.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            child_end.close()
            self._members.append((member, parent_end))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def map(
        self, function: Callable[[T], R], items: Iterable[T], label: str = "reading dumps"
    ) -> list[R]:
        """Return ``function`` of each item, in order. Both must pickle. Not available
        after :meth:`scan`.

        ``what`` names the work in its progress. Raises the exceptions of the function.
        """
        waiting = deque(enumerate(items))
        stage = StageTimes(label, len(waiting))
        with ProgressLine(label, len(waiting)) as line:
            results = self._map(function, waiting, line, stage)
        stage.end()
        return results

    def _map(
        self,
        function: Callable[[T], R],
        waiting: deque[tuple[int, T]],
        line: ProgressLine,
        stage: StageTimes,
    ) -> list[R]:
        results: dict[int, R] = {}
        busy: dict[Connection, int] = {}
        began: dict[Connection, float] = {}
        free = [pipe for _, pipe in self._members]
        while waiting or busy:
            while waiting and free:
                pipe = free.pop()
                busy[pipe], item = waiting.popleft()
                began[pipe] = stage.now()
                _send(pipe, _Call(function, item))
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                results[busy.pop(pipe)] = self._recv(pipe)
                stage.task_done(began[pipe])
                free.append(pipe)
                line.add()
        return [results[number] for number in range(len(results))]

    def scan(self, tasks: Sequence[Task], context: TaskContext) -> Iterator[pa.RecordBatch | None]:
        """Yield batches of ``context.columns()``, the rows that ``scan.scan`` has, and
        None after the last row of jobs where tasks have any. May be called once.

        Raises the exceptions of the tasks, and NotReady (75) if a process was killed.
        """
        waiting = deque(tasks)
        busy = [pipe for _, pipe in self._members]
        doing: dict[Connection, Task | None] = {}
        records: dict[Connection, int] = {}
        stage = StageTimes(f"reading logs of {context.day}", len(tasks))
        began: dict[Connection, float] = {}
        live = LiveCounters()
        # Processes that may still send rows of jobs.
        of_jobs = {*busy} if any(task.has_job_rows for task in tasks) else set()

        def send_task(pipe: Connection) -> None:
            doing[pipe] = waiting.popleft() if waiting else None
            began[pipe] = stage.now()
            _send(pipe, doing[pipe])

        for pipe in busy:
            _send(pipe, context)
            send_task(pipe)
        with ProgressLine(stage.name, sum(task.weight for task in tasks), "bytes") as line:
            while busy:
                ready = wait(busy)
                for pipe in [pipe for pipe in busy if pipe in ready]:
                    message = self._recv(pipe)
                    if isinstance(message, _TaskDone):
                        task, more = doing[pipe], message.records - records.get(pipe, 0)
                        records[pipe] = message.records
                        if task is not None and task.earlier_day is None:
                            live.add(
                                records_read=more,
                                input_files=len(task.paths),
                                input_bytes=task.size,
                            )
                        stage.task_done(began[pipe])
                        line.update(
                            line.done + (task.weight if task else 0), sum(records.values())
                        )
                        send_task(pipe)
                        is_past_jobs = task is not None and not task.has_job_rows
                    elif message == "end":
                        busy.remove(pipe)
                        is_past_jobs = True
                    else:
                        yield message
                        continue
                    if is_past_jobs and pipe in of_jobs:
                        of_jobs.remove(pipe)
                        if not of_jobs:
                            yield None
        live.write()
        stage.end()

    def _recv(self, pipe: Connection) -> Any:
        """Return the next message of a process. Raises the error that it sends, and
        NotReady (75) if it is gone.
        """
        try:
            message = pipe.recv()
            if isinstance(message, _Rows):
                return message.receive(pipe)
        except (EOFError, ConnectionResetError):
            raise _ended(
                next(member for member, of_member in self._members if of_member is pipe)
            ) from None
        if isinstance(message, Exception):
            raise message
        return message

    def close(self) -> None:
        """Terminate the processes, whatever they do."""
        for _, pipe in self._members:
            pipe.close()
        for member, _ in self._members:
            member.terminate()
            member.join()
        self._members = []


def cores() -> int:
    """Return the number of cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def _send(pipe: Connection, message: object) -> None:
    try:
        pipe.send(message)
    except (BrokenPipeError, ConnectionResetError):
        # The process is gone; the next recv() reads its last message, or that there is none.
        return


def _ended(member: ForkProcess) -> NotReady:
    member.join(5)
    code = member.exitcode
    how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with {code}"
    return NotReady(
        "a process that reads logs was killed",
        found=f"it ended {how}",
        next_step="check whether the host ran out of memory; run it again, with more memory or fewer cores",
    )


def _file_error(error: Exception) -> CmssparkError | None:
    """Return the error for a file of a task that cannot be read or written, whatever
    the reason; else None.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return None
    path = str(error.filename or "a file of a task")
    if isinstance(error, FileNotFoundError):
        return InputMissing(
            "a file is gone", where=path, found=error.strerror, next_step="run it again"
        )
    return unreadable(path, error)


def _serve(pipe: Connection, parent_ends: Sequence[Connection]) -> None:
    """Run a worker process: its tasks until there are none or the parent is gone."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes; the parent terminates this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_SIGNALS)
    for end in parent_ends:
        end.close()
    gc.freeze()  # what the parent imported stays: no search for garbage walks over it
    try:
        while isinstance(message := pipe.recv(), _Call):
            pipe.send(message.function(message.item))
        state = WorkerState(message)
        while (task := pipe.recv()) is not None:
            for batch in state.read(task):
                _Rows.send(pipe, batch)
            pipe.send(_TaskDone(state.records))
        for batch in state.end():
            _Rows.send(pipe, batch)
        pipe.send("end")
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        _send(pipe, as_ours(error) or _file_error(error) or WorkerFailed(traceback.format_exc()))


# A function of many items in parallel: as tasks of Spark, one each, or one after the
# other in this process.

#: Takes what all items share and one item, and returns a JSON object.
Work = Callable[[Any, Any], dict[str, Any]]


def map_tasks(
    work: Work, shared: Any, items: Sequence[Any], spark: SparkSession | None = None
) -> list[dict[str, Any]]:
    """Return the results of all items, in their order. ``shared`` is broadcast once;
    both must be pickled.

    Without a session they run in this process. Raises what the work raises.
    """
    if spark is None:
        return [work(shared, item) for item in items]
    if not items:
        return []
    from cmsspark.engines.session import unwrap_cause

    sent = spark.sparkContext.broadcast((shared, list(items)))

    def batches(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        shared_by_all, all_items = sent.value
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                result = json.dumps(work(shared_by_all, all_items[number]))
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

    count = len(items)
    try:
        rows = (
            spark.range(0, count, 1, count)
            .mapInArrow(batches, "number long, result string")
            .collect()
        )
    except Exception as error:
        raise unwrap_cause(error) from None
    finally:
        sent.unpersist()
    results = {row["number"]: json.loads(row["result"]) for row in rows}
    return [results[number] for number in range(count)]
