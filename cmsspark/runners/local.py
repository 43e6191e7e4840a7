"""A day counted by processes of this host, without a JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from types import FrameType

from cmsspark.kernel.merge import Aggregated, SideRow, merge
from cmsspark.runners.engines import PROCESSES
from cmsspark.runners.scan import StreamFiles, TaskContext, pack
from cmsspark.runners.worker_pool import TASK_BYTES, WorkerPool, cores
from cmsspark.schemas import stored_table
from cmsspark.store.results import StagedRun


@contextmanager
def worker_pool() -> Iterator[WorkerPool]:
    """The processes. Whoever ends this one by SIGTERM or SIGHUP ends them too, and what was begun is cleared away."""
    # Imported before the processes are made, once for all.
    import pyarrow.parquet  # noqa: F401

    with _interruptible(), WorkerPool(cores()) as pool:
        yield pool


def run_local(pool: WorkerPool, streams: Sequence[StreamFiles], context: TaskContext) -> LocalResult:
    """Count the files of all streams. Raises DataError (65), NotAllowed (77), NotReady (75)."""
    tasks = pack(streams, cores(), TASK_BYTES)
    return LocalResult(merge(pool.scan(tasks, context)), context.day)


@dataclass
class LocalResult:
    """See :class:`cmsspark.pipeline.scan_summary.ScanResult`."""

    merged: Aggregated
    day: date
    engine: str = PROCESSES

    def side_rows(self) -> Iterator[SideRow]:
        """The scan's rows that are no accesses."""
        return self.merged.side_rows()

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """(stream, detail) of malformed records."""
        return iter(self.merged.quarantined)

    def write(self, run: StagedRun, table: str, fmt: str) -> int:
        """Write a table of the run and return its rows."""
        make = self.merged.partials if table == "partials" else self.merged.report
        return run.write_arrow(make(self.day, stored_table(table)), table)

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs as Ctrl-C does. What is ignored (``nohup``) stays so."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
