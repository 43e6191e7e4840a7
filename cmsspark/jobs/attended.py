"""What every run of a job on a day does around its work: it holds the day's lease and clears what the dead left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from cmsspark.runs import lease
from cmsspark.sinks import store
from cmsspark.storage import Files

if TYPE_CHECKING:
    from cmsspark.settings import Settings


@dataclass
class Attended:
    """A run on its way. ``lock`` it as soon as the store can be reached; ``check`` before its result counts."""

    fout: str
    job: str
    day: date
    tell: Callable[[str], None]
    stack: ExitStack
    held: lease.Lease | None = None

    def lock(self, files: Files) -> None:
        """Hold the day's lease until the run's end. Raises NotReady (75) that says who holds it."""
        if self.held is not None:
            return
        folder = lease.day_folder(self.fout, self.job, self.day)
        self.held = self.stack.enter_context(lease.held(files, folder, f"{self.job} of {self.day}"))
        for path in store.clear_leftovers(files, self.fout, self.job, self.day):
            self.tell(f"removed what a run that was killed had left: {path}")

    def check(self) -> None:
        """Raises NotReady (75) where another process took the day over."""
        if self.held is not None:
            self.held.check()


@contextmanager
def attended(settings: Settings, fout: str, job: str, day: date, tell: Callable[[str], None]) -> Iterator[Attended]:
    """A run of ``job`` for ``day``, from here to the end of the block."""
    with ExitStack() as stack:
        yield Attended(fout, job, day, tell, stack)
