"""The scan on one host without Spark: the same tasks, in processes of this host that fold all that they read.

Nothing is retried here: a process that fails ends the scan. So each process keeps one fold for each stream through all
of its tasks, and hands over its rows once, when nothing is left to read.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from cmsspark.errors import CmssparkError, NotReady
from cmsspark.kernel.pre_aggregate import StreamAggregator
from cmsspark.memory import trim
from cmsspark.runners.scan import Task, TaskContext, TaskReader, read_task

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    import pyarrow as pa

#: Bytes of input a task here: small enough that no process waits long for another at the end.
TASK_BYTES: Final = 64_000_000


T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class _Call:
    """Work that is no task of the scan."""

    function: Callable[[Any], Any]
    item: Any


class WorkerFailed(Exception):
    """An error in a process that is none of ours; its text is the trace there."""


@dataclass
class WorkerState:
    """What one process reads, from its first task to its last."""

    context: TaskContext
    _open: dict[tuple[str, str], tuple[TaskReader, StreamAggregator]] = field(default_factory=dict)

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Read the task's files; yields what cannot wait for the end."""
        key = (task.stream, task.form)
        if key not in self._open:
            trim()
            reader = self.context.make_reader(task.stream, task.form, self.context.day)
            self._open[key] = (reader, self.context.fold(task.stream))
        reader, fold = self._open[key]
        yield from read_task(task, self.context, reader, fold)

    def end(self) -> Iterator[pa.RecordBatch]:
        """The rows of all that was read."""
        # The largest last, when the others are gone.
        for key in sorted(self._open, key=lambda one: self._open[one][1].held):
            trim()
            reader, fold = self._open.pop(key)
            yield from self.context.batches(reader, fold, is_last=True, dictionaries=True)


_HELD_BACK: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerPool:
    """Processes that wait for tasks. Made early, when this process has few threads and little memory to copy."""

    def __init__(self, count: int) -> None:
        self._members: list[tuple[ForkProcess, Connection]] = []
        context = multiprocessing.get_context("fork")
        for _ in range(max(1, count)):
            here, there = context.Pipe()
            # A child must not hold its parent's ends of the pipes: it ends when the parent is gone.
            ends = [pipe for _, pipe in self._members] + [here]
            member = context.Process(target=_serve, args=(there, ends), daemon=True)
            # A signal that comes while it is being made is heard when it can answer.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
            try:
                member.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()
            self._members.append((member, here))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``function`` of each item, in order, as ``map`` gives them; both must pickle. Not after :meth:`scan`.

        Raises what the function raises.
        """
        waiting = deque(enumerate(items))
        found: dict[int, R] = {}
        at_work: dict[Connection, int] = {}
        free = [pipe for _, pipe in self._members]
        while waiting or at_work:
            while waiting and free:
                pipe = free.pop()
                at_work[pipe], item = waiting.popleft()
                _send(pipe, _Call(function, item))
            heard = wait(list(at_work))
            for pipe in [one for one in at_work if one in heard]:
                found[at_work.pop(pipe)] = self._recv(pipe)
                free.append(pipe)
        return [found[number] for number in range(len(found))]

    def scan(self, tasks: Sequence[Task], context: TaskContext) -> Iterator[pa.RecordBatch]:
        """Batches of ``context.columns()``, as ``scan.scan`` has them in its rows. To be called once.

        Raises what a task raises, and NotReady (75) where a process was ended from outside.
        """
        waiting = deque(tasks)
        at_work = [pipe for _, pipe in self._members]
        for pipe in at_work:
            _send(pipe, context)
            _send(pipe, waiting.popleft() if waiting else None)
        while at_work:
            heard = wait(at_work)
            for pipe in [one for one in at_work if one in heard]:
                said = self._recv(pipe)
                if said == "next":
                    _send(pipe, waiting.popleft() if waiting else None)
                elif said == "end":
                    at_work.remove(pipe)
                else:
                    yield said

    def _recv(self, pipe: Connection) -> Any:
        """What a process says next. Raises the error that it says, or that it is gone."""
        try:
            said = pipe.recv()
        except (EOFError, ConnectionResetError):
            raise _ended(next(member for member, one in self._members if one is pipe)) from None
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        """End the processes, whatever they do."""
        for _, pipe in self._members:
            pipe.close()
        for member, _ in self._members:
            member.terminate()
            member.join()
        self._members = []


def cores() -> int:
    """The processes that this host does well with."""
    return max(1, len(os.sched_getaffinity(0)))


def _send(pipe: Connection, what: object) -> None:
    try:
        pipe.send(what)
    except (BrokenPipeError, ConnectionResetError):
        # It is gone; what it said before, or that it said nothing, is read from the pipe.
        return


def _ended(member: ForkProcess) -> NotReady:
    member.join(5)
    code = member.exitcode
    how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with {code}"
    return NotReady(
        "a process that reads logs was ended from outside",
        found=f"it ended {how}",
        next_step="was there memory enough? run it again, with more memory or fewer cores",
    )


def _serve(pipe: Connection, not_mine: Sequence[Connection]) -> None:
    """The work of a process of the pool: tasks, until there are none or nobody gives any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; who gives the tasks ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    for other in not_mine:
        other.close()
    try:
        while isinstance(said := pipe.recv(), _Call):
            pipe.send(said.function(said.item))
        state = WorkerState(said)
        while (task := pipe.recv()) is not None:
            for batch in state.read(task):
                pipe.send(batch)
            pipe.send("next")
        for batch in state.end():
            pipe.send(batch)
        pipe.send("end")
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except CmssparkError as error:
        _send(pipe, error)
    except Exception:
        _send(pipe, WorkerFailed(traceback.format_exc()))
