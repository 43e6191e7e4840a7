"""The local runner: processes of this host count a day, without a JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from types import FrameType
from typing import Any

import msgspec
from msgspec.structs import replace

from cmsspark.base.schemas import stored_table
from cmsspark.counting.crab_rows import merge_rows
from cmsspark.counting.merge import Aggregated, SideRow, merge
from cmsspark.engines.job_work import JobTables, without_jobs
from cmsspark.engines.names import PROCESSES
from cmsspark.engines.tasks import StreamFiles, TaskContext, pack_tasks
from cmsspark.engines.worker_pool import TASK_BYTES, WorkerPool, cores
from cmsspark.sources.registry import JOB_TABLES, SITE_PAIRS
from cmsspark.store.staged_runs import StagedRun


@contextmanager
def worker_pool() -> Iterator[WorkerPool]:
    """Start the worker processes. SIGTERM or SIGHUP to this process ends them too, and
    removes unfinished results.
    """
    # Imported before the processes are forked, so that they share it.
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    with _interruptible(), WorkerPool(cores()) as pool:
        yield pool


class LocalRunner(msgspec.Struct, frozen=True):
    """Counts days by the processes of a pool; one day for each pool."""

    pool: WorkerPool

    def run(self, streams: Sequence[StreamFiles], context: TaskContext) -> LocalResult:
        """Count the files of all streams. Raises DataError (65), NotAllowed (77), NotReady (75)."""
        tasks = pack_tasks(streams, cores(), TASK_BYTES)
        tables = JobTables()
        batches = merge_rows(self.pool.scan(tasks, replace(context, jobs=None)))
        if context.jobs is not None:
            batches = without_jobs(batches, context.jobs, tables)
        return LocalResult(merge(batches), context.day, tables)


class LocalResult(msgspec.Struct):
    """A day that processes have counted: its side rows (see ``Aggregated.side_rows``)
    and its tables.
    """

    merged: Aggregated
    day: date
    jobs: JobTables
    engine: str = PROCESSES

    def side_rows(self) -> Iterator[SideRow]:
        """Return the rows of the scan that are not accesses."""
        return self.merged.side_rows()

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """Return (stream, detail) of malformed records."""
        return iter(self.merged.quarantined)

    def write(self, run: StagedRun, table: str, fmt: str) -> int:
        """Write a table of the run and return its number of rows."""
        if table in JOB_TABLES:
            return run.write_arrow(self.jobs.table(table, self.day), table)
        make = {"partials": self.merged.partials, SITE_PAIRS: self.merged.site_pairs}.get(
            table, self.merged.report
        )
        return run.write_arrow(make(self.day, stored_table(table)), table)

    def cluster_events(self) -> list[dict[str, Any]]:
        """Return nothing: no executor and no task of processes is repeated."""
        return []

    def close(self) -> None:
        """Do nothing: the result holds only memory."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, as on Ctrl-C. An ignored signal
    (``nohup``) stays ignored.
    """

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
