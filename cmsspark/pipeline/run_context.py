"""What every run of a job on a day does around its work: it holds the day's lease, clears what the dead left, and is
entered in the ledger.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cmsspark import clock
from cmsspark.errors import CmssparkError, Exit, as_ours
from cmsspark.periods import Interval, Period, first_day
from cmsspark.storage import Files
from cmsspark.store import lease, process_identity, results, run_history
from cmsspark.store.run_history import Published, Run, State

if TYPE_CHECKING:
    from cmsspark.settings import Settings

#: What the ledger keeps of a manifest.
_DETAILS: Final = (
    *("tables", "reconciliation", "out_of_day_by_day", "generations", "drift", "damaged", "dumps", "join"),
    *("unmatched_prefixes", "streams", "missing_streams", "warnings", "quarantine", "versions", "pseudonym_key_id"),
    *("period", "days", "missing_days", "partial_days"),
)


@dataclass
class RunContext:
    """A run on its way. ``lock`` it as soon as the store can be reached; ``check`` before its result counts."""

    settings: Settings
    fout: str
    job: str
    day: Interval
    tell: Callable[[str], None]
    stack: ExitStack
    held: lease.Lease | None = None
    #: The run's manifest, once it is stored.
    manifest: Mapping[str, Any] | None = None
    began: float = field(default_factory=time.time)
    #: The same moment by a clock that does not jump.
    began_ticks: float = field(default_factory=time.monotonic)
    _is_told: bool = False

    def lock(self, files: Files) -> None:
        """Hold the day's lease until the run's end. Raises NotReady (75) that says who holds it."""
        if self.held is not None:
            return
        folder = lease.folder_of(self.fout, self.job, self.day)
        self.held = self.stack.enter_context(lease.hold(files, folder, f"{self.job} of {self.day}"))
        for path in results.remove_leftovers(files, self.fout, self.job, self.day):
            self.tell(f"removed what a run that was killed had left: {path}")

    def check(self) -> None:
        """Raises NotReady (75) where another process took the day over."""
        if self.held is not None:
            self.held.check()

    def enter(self, run: Run) -> None:
        """Enter the run in the ledger; a ledger that fails is told, once, and stops nothing."""
        notes: list[str] = []
        try:
            with run_history.open_history(self.settings.state_dir, notes) as book:
                book.put(run)
                if run.state is State.RUNNING:
                    book.sweep()
        except CmssparkError as error:
            notes.append(f"{error.wanted} ({error.found}): {error.where}; the run goes on without it")
        for note in notes if not self._is_told else ():
            self._is_told = True
            self.tell(f"warning: {note}")


@contextmanager
def running(
    settings: Settings, fout: str, job: str, day: Interval, tell: Callable[[str], None]
) -> Iterator[RunContext]:
    """A run of ``job`` for ``day``, or for a period, from here to the end of the block."""
    with ExitStack() as stack:
        run_of_day = RunContext(settings, fout, job, day, tell, stack)
        run = _begun(run_of_day)
        run_of_day.enter(run)
        try:
            yield run_of_day
        except BaseException as error:
            run_of_day.enter(_failed(run, error))
            raise
        run_of_day.enter(_done(run, run_of_day.manifest))


def _begun(run_of_day: RunContext) -> Run:
    began = run_of_day.began
    name = clock.new_run_id(int(began * 1000))
    day = run_of_day.day
    run = Run(name, run_of_day.job, first_day(day), State.RUNNING, run_of_day.fout, int(began * 1000))
    told = {"period": day.isoformat()} if isinstance(day, Period) else {}
    return replace(run, process=process_identity.identity(), details=told)


def _failed(run: Run, error: BaseException) -> Run:
    if (ours := as_ours(error)) is not None:
        state, code, text = State.FAILED, int(ours.exit_code), ours.text()
    elif isinstance(error, Exception):
        state, code, text = State.FAILED, int(Exit.BUG), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    else:
        state, code, text = State.INTERRUPTED, int(Exit.NOT_READY), "interrupted"
    return replace(_ended(run), state=state, exit_code=code, error=text)


def _done(run: Run, manifest: Mapping[str, Any] | None) -> Run:
    ended = replace(_ended(run), state=State.DONE, exit_code=0)
    return ended if manifest is None else replace(ended, **_told(manifest))


def _ended(run: Run) -> Run:
    now = clock.now_ms()
    return replace(run, ended_ms=now, seconds=round((now - run.began_ms) / 1000, 1))


def _told(manifest: Mapping[str, Any]) -> dict[str, Any]:
    tables = manifest.get("tables") or {}
    return {
        "stored_run": manifest.get("run"),
        "rows": next((table.get("rows") for table in tables.values()), None),
        "is_partial": bool(manifest.get("partial")),
        "fingerprint": fingerprint(manifest),
        "details": {name: manifest[name] for name in _DETAILS if manifest.get(name)},
    }


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """A digest of the files that a run read: names, sizes, times."""
    told = sorted(
        (one.get("stream") or one.get("table") or "", *file)
        for one in manifest.get("inputs", ())
        for file in one["files"]
    )
    return hashlib.sha256(json.dumps(told).encode("utf-8", "surrogatepass")).hexdigest()


def from_manifest(manifest: Mapping[str, Any], fout: str) -> Run:
    """A run as far as its manifest tells of it. Raises KeyError and ValueError for what is no manifest."""
    stored = str(manifest["run"])
    began_ms = clock.run_began_ms(stored)
    seconds = manifest.get("seconds")
    run = Run(stored, str(manifest["job"]), date.fromisoformat(manifest["day"]), State.DONE, fout, 0, exit_code=0)
    ended_ms = began_ms if seconds is None else began_ms + int(1000 * seconds)
    return replace(run, began_ms=began_ms, ended_ms=ended_ms, seconds=seconds, **_told(manifest))


def note_published(
    state_dir: Path,
    job: str,
    table: str,
    day: date,
    stored_run: str,
    where: str,
    confirmed: int,
    waiting: int,
    refused: int,
) -> None:
    """Enter what became of a stored run's documents; a ledger that fails is no reason to say they were not sent."""
    now = clock.now_ms()
    with suppress(CmssparkError), run_history.open_history(state_dir) as book:
        book.note_published(Published(job, table, day, stored_run, where, now, confirmed, waiting, refused))
