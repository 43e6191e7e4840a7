"""People's queries in processes of their own, each with a memory limit; one that does
not end in time is killed.

DuckDB cannot interrupt every function (``levenshtein`` of long texts), and a text of
gigabytes is not in its own memory limit. Both would stop all pages in the server's
process.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.base.errors import CmssparkError, NotReady, UsageError, as_ours
from cmsspark.store.query.database import Database, QueryResult

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    import pyarrow as pa


# A process beside the server that answers what it is sent; it can be killed, and never
# outlives the server.

#: Seconds between two looks whether an answer is still needed.
LOOK_S: Final = 0.1
#: Seconds that a process whose pipe has ended has to end, on a busy machine.
_EXIT_S: Final = 10.0
#: The exit code of a process that lacks memory, also to say so.
NO_MEMORY: Final = errno.ENOMEM


class Child:
    """A process that runs ``target(pipe, *values)``. All values must pickle."""

    def __init__(self, target: Callable[..., None], *values: Any) -> None:
        # Forking a process with threads may copy a lock that nobody releases.
        context = multiprocessing.get_context("spawn")
        self.pipe, child_end = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_run, args=(target, child_end, os.getpid(), values), daemon=True
        )
        self._process.start()
        child_end.close()
        #: Whether :meth:`kill` has ended it.
        self.is_killed = False

    @property
    def is_alive(self) -> bool:
        """Whether it can answer."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, waiting for its end; None where it still runs. Negative for a signal."""
        self._process.join(timeout=_EXIT_S)
        return self._process.exitcode

    def receive(
        self, end: float | None = None, is_gone: Callable[[], bool] = lambda: False
    ) -> Any:
        """Return what the process sends next, or raise the exception that it sends.

        Raises TimeoutError after ``end`` (monotonic seconds) and where ``is_gone``,
        EOFError where the process ended.
        """
        while not self.pipe.poll(LOOK_S):
            if is_gone() or (end is not None and time.monotonic() > end):
                raise TimeoutError
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """End the process at once."""
        self.is_killed = True
        self._process.kill()
        self._process.join(timeout=1)


def answered(function: Callable[[], Any]) -> Any:
    """Return the result of a function, or the exception to send in its place."""
    try:
        return function()
    except Exception as error:  # whatever it is, the server raises it
        return as_ours(error) or RuntimeError(f"{type(error).__name__}: {error}"[:500])


def _run(
    target: Callable[..., None], pipe: Connection, parent: int, values: tuple[Any, ...]
) -> None:
    # Ctrl-C is sent to all processes of a terminal: the server ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        target(pipe, *values)
    except MemoryError:
        sys.exit(NO_MEMORY)


def _end_with(parent: int) -> None:
    """End this process when the server is gone, also within work that cannot be interrupted."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


#: Queries that run at once, that wait for their turn, and the seconds that they wait at most.
AT_ONCE, WAITING, WAIT_S = 2, 4, 5.0
#: Bytes that a process may take for queries, beyond those of its libraries.
MEMORY: Final = 1 << 30
#: Seconds after which a process without a query ends.
_IDLE_S: Final = 60.0
#: Seconds that DuckDB has to interrupt a query before its process is killed.
_GRACE_S: Final = 0.5
_STATM: Final = Path("/proc/self/statm")


class Query(msgspec.Struct, frozen=True):
    """A query with its limits: rows, bytes of the result, and seconds."""

    sql: str
    max_rows: int
    max_bytes: int
    max_seconds: float


class QueryPool:
    """Runs people's queries over the store ``fout``. Its processes start when they are
    first needed.
    """

    def __init__(self, fout: str) -> None:
        self._start = partial(Child, _serve, fout)
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._lock = threading.Lock()
        self._turns = _Turns()

    def run(
        self, query: Query, is_gone: Callable[[], bool] = lambda: False, visitor: str = ""
    ) -> QueryResult:
        """Return the rows of a query. ``is_gone`` says whether nobody waits for them any
        more. Of one visitor one query runs and one waits.

        Raises Busy (75) where too many queries run or wait, NotReady (75) if the time
        is over or the process ends unexpectedly, UsageError (2) where the query needs
        more memory than it may use, and the errors of :meth:`Database.query`.
        """
        with self._turns.take(visitor, is_gone):
            return self._run(query, is_gone)

    def close(self) -> None:
        """End all processes; a query that runs fails."""
        with self._lock:
            processes = [*self._idle, *self._busy]
            self._idle.clear()
        for process in processes:
            process.kill()

    def _run(self, query: Query, is_gone: Callable[[], bool]) -> QueryResult:
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else self._start()
                self._busy.add(process)
            with suppress(_IdleEnded):
                try:
                    return _ask(process, query, is_gone, self._prepare)
                finally:
                    with self._lock:
                        self._busy.discard(process)
                        if process.is_alive:
                            self._idle.append(process)

    def _prepare(self) -> None:
        """Start a process for the next query: on a busy machine that takes seconds, which
        another visitor need not wait then.
        """
        with self._lock:
            self._idle = [process for process in self._idle if process.is_alive]
            if len(self._idle) + len(self._busy) < AT_ONCE:
                self._idle.append(self._start())


class Busy(NotReady):
    """Others use all that the server gives at once, or the visitor does (75)."""


class _Turns:
    """Lets queries run in the order in which they came, one of each visitor."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: list[str] = []
        self._waiting: list[str] = []

    @contextmanager
    def take(self, visitor: str, is_gone: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn, which ends with the block. Raises Busy (75) if others wait
        already, the visitor has a query that waits, or none comes in time.
        """
        end = time.monotonic() + WAIT_S
        with self._changed:
            if visitor in self._waiting:
                raise Busy(
                    "your other queries are running",
                    found="of one visitor one runs and one waits",
                    next_step="run it again when they are done",
                )
            if len(self._waiting) >= WAITING:
                raise _busy()
            self._waiting.append(visitor)
            try:
                while not self._may_run(visitor):
                    self._changed.wait(LOOK_S)
                    if time.monotonic() > end or is_gone():
                        raise _busy()
                self._running.append(visitor)
            finally:
                self._waiting.remove(visitor)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(visitor)
                self._changed.notify_all()

    def _may_run(self, visitor: str) -> bool:
        """Return whether the visitor is the next of those that have no query running."""
        ready = (name for name in self._waiting if name not in self._running)
        return len(self._running) < AT_ONCE and next(ready, None) == visitor


def _busy() -> Busy:
    return Busy(
        "other queries are running",
        found=f"{AT_ONCE} at once, {WAITING} wait",
        next_step="run it again later",
    )


class _IdleEnded(Exception):
    """The process ended because nothing was asked, just before it was asked."""


def _ask(
    child: Child, query: Query, is_gone: Callable[[], bool], meanwhile: Callable[[], None]
) -> QueryResult:
    """Return the rows; ends the process where it does not answer in time or nobody waits.
    ``meanwhile`` is called once the query runs.
    """
    try:
        child.receive(is_gone=is_gone)
        child.pipe.send(query)
        end = time.monotonic() + query.max_seconds + _GRACE_S
        meanwhile()
        is_truncated, seconds, content = child.receive(end, is_gone)
        return QueryResult(_to_table(content), is_truncated, seconds)
    except TimeoutError:
        child.kill()
        raise NotReady(
            f"the query took longer than {query.max_seconds:g} s",
            next_step="ask for fewer days or columns, or for shorter texts",
        ) from None
    except (EOFError, BrokenPipeError, ConnectionResetError):
        if child.is_killed:
            raise NotReady(
                "the dashboard ends", next_step="run the query again when it is back"
            ) from None
        code = child.exit_code
        if code == 0:
            raise _IdleEnded from None
        child.kill()
        raise _ended(code) from None


def _ended(code: int | None) -> CmssparkError:
    """Return the error for a process that ended without an answer. The system kills one
    where memory is short.
    """
    less = "ask for fewer rows or columns, or shorter texts"
    if code in (-signal.SIGKILL, NO_MEMORY):
        return UsageError(
            "the query needs more memory than it may use", found=how_ended(code), next_step=less
        )
    return NotReady(
        "the process of the query ended unexpectedly",
        found=how_ended(code),
        next_step=f"run it again; where it ends so again, {less}",
    )


def how_ended(code: int | None) -> str:
    """Return how a process ended, by its exit code.

    Example:
        >>> how_ended(-signal.SIGKILL), how_ended(3)
        ('it was killed (SIGKILL)', 'it ended with code 3')
    """
    if code == NO_MEMORY:
        return "it lacked memory"
    if code == -signal.SIGKILL:
        return "it was killed (SIGKILL)"
    if code is not None and code < 0:
        return f"it ended by signal {-code} ({signal.strsignal(-code)})"
    return f"it ended with code {code}"


def _serve(pipe: Connection, fout: str) -> None:
    """Answer queries until the server is gone or asks nothing for some time."""
    database = answered(lambda: _open(fout))
    if isinstance(database, Exception):
        pipe.send(database)
        return
    with database, suppress(EOFError, OSError):
        while True:
            pipe.send("ready")
            if not pipe.poll(_IDLE_S):
                return
            query: Query = pipe.recv()
            pipe.send(answered(lambda query=query: _answer(database, query)))  # type: ignore[misc]


def _open(fout: str) -> Database:
    database = Database(fout, is_private=False, memory="250MB", threads=2, max_age_s=2)
    database.query("SELECT 1")
    limit_memory(MEMORY)
    return database


def limit_memory(more: int) -> None:
    """Let this process take at most ``more`` bytes of data beyond those that it has
    now, until it ends: DuckDB's own limit leaves out long texts, such as ``repeat('a',
    2000000000)``.

    An allocation beyond them fails. A lower limit that is set already stays. The limit
    is relative, because allocators reserve gigabytes that they never use. Without
    effect where there is no ``/proc``.
    """
    if not _STATM.is_file():
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    data_limit = int(_STATM.read_text().split()[5]) * resource.getpagesize() + more
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([data_limit, *limits]), hard))


def _answer(database: Database, query: Query) -> tuple[bool, float, bytes]:
    result = database.query(
        query.sql,
        max_rows=query.max_rows,
        max_bytes=query.max_bytes,
        max_seconds=query.max_seconds,
    )
    return result.is_truncated, result.seconds, _to_bytes(result.table)


def _to_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _to_table(content: bytes) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
