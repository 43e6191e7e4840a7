"""What both runners return: the counted day, before it is stored. Knows no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from cmsspark.counting.merge import SideRow
from cmsspark.engines.tasks import StreamFiles, TaskContext
from cmsspark.store.results import StagedRun


class ScanResult(Protocol):
    """A day that a runner has counted: its side rows (see ``Aggregated.side_rows``) and its tables."""

    engine: str

    def side_rows(self) -> Iterable[SideRow]:
        """Return the rows of the scan that are not accesses."""

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """Return (stream, detail) of malformed records."""

    def write(self, run: StagedRun, table: str, fmt: str) -> int:
        """Write a table of the run and return its number of rows."""

    def close(self) -> None:
        """Release what the result holds."""


class Runner(Protocol):
    """Counts the files of a day. A runner only moves rows to and from the kernel."""

    def run(self, streams: Sequence[StreamFiles], context: TaskContext) -> ScanResult:
        """Count the files of all streams. Raises DataError (65), NotAllowed (77), NotReady (75)."""
