"""A day counted by processes of this host, without a JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from types import FrameType

from cmsspark.jobs import engine
from cmsspark.jobs.scanned import Told
from cmsspark.schemas import stored_table
from cmsspark.sinks.store import Run
from cmsspark.transforms.arrow import Folded, fold_batches, partials, report
from cmsspark.transforms.local_scan import TASK_BYTES, Crew, cores
from cmsspark.transforms.scan import Kit, StreamFiles, pack


@contextmanager
def crew() -> Iterator[Crew]:
    """The processes. Whoever ends this one by SIGTERM or SIGHUP ends them too, and what was begun is cleared away."""
    # Imported before the processes are made, once for all.
    import pyarrow.parquet  # noqa: F401

    with _interruptible(), Crew(cores()) as made:
        yield made


def count(made: Crew, streams: Sequence[StreamFiles], kit: Kit) -> ByProcesses:
    """Count the files of all streams. Raises DataError (65), NotAllowed (77), NotReady (75)."""
    tasks = pack(streams, cores(), TASK_BYTES)
    return ByProcesses(fold_batches(made.scan(tasks, kit)), kit.day)


@dataclass
class ByProcesses:
    """See :class:`cmsspark.jobs.scanned.Counted`."""

    folded: Folded
    day: date
    engine: str = engine.PROCESSES

    def told(self) -> Iterator[Told]:
        """Rows that are neither accesses nor quarantined records."""
        return self.folded.told()

    def known(self) -> dict[str, set[str]]:
        """What any access has, by stream."""
        return self.folded.known()

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """(stream, detail) of malformed records."""
        return self.folded.quarantined()

    def write(self, run: Run, table: str, fmt: str) -> int:
        """Write a table of the run and return its rows."""
        make = partials if table == "partials" else report
        return run.write_arrow(make(self.folded, self.day, stored_table(table)), table)

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
