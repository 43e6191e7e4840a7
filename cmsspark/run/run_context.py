"""The context of every run of a job: holds the lease of its day or period, removes
leftovers of killed runs, stages the result, and records the run in the run history.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from cmsspark.base import dates, self_metrics
from cmsspark.base.entry_points import with_packages
from cmsspark.base.errors import CmssparkError, Exit, as_ours
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Interval, Period, first_day
from cmsspark.base.text import progress_line
from cmsspark.filesystems.storage import Files, absolute
from cmsspark.run import run_report
from cmsspark.store import lease as store_lease
from cmsspark.store import run_history, staged_runs
from cmsspark.store.lease import Lease
from cmsspark.store.run_history import Published, Run, State

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

#: Entry points of packages that observe runs: functions of a run and its manifest, called
#: when it began and when it ended.
OBSERVERS: Final = "cmsspark.runs"
#: The parts of a manifest that the run history keeps.
_DETAILS: Final = (
    *(
        "tables",
        "reconciliation",
        "out_of_day_by_day",
        "generations",
        "drift",
        "damaged",
        "dumps",
        "join",
    ),
    *(
        "unmatched_prefixes",
        "streams",
        "missing_streams",
        "warnings",
        "quarantine",
        "versions",
        "pseudonym_key_id",
    ),
    *("period", "days", "missing_days", "partial_days"),
)


class RunContext(msgspec.Struct):
    """A run in progress. Call ``lock`` as soon as the store can be reached, and write
    the result in ``staged``.
    """

    settings: Settings
    fout: str
    job: str
    interval: Interval
    log: Callable[[str], None]
    stack: ExitStack
    lease: Lease | None = None
    #: The run's manifest, once it is stored.
    manifest: Manifest | None = None
    began: float = msgspec.field(default_factory=time.time)
    #: The same moment by a clock that does not jump.
    began_ticks: float = msgspec.field(default_factory=time.monotonic)
    _has_warned: bool = False

    def lock(self, files: Files) -> None:
        """Hold the lease until the run's end, and remove leftovers of killed runs.
        Raises NotReady (75).
        """
        if self.lease is not None:
            return
        folder = store_lease.lease_folder(self.fout, self.job, self.interval)
        self.lease = self.stack.enter_context(
            store_lease.hold(files, folder, f"{self.job} of {self.interval}")
        )
        for path in staged_runs.remove_leftovers(files, self.fout, self.job, self.interval):
            self.log(f"removed leftovers of a killed run: {path}")

    def check(self) -> None:
        """Raise NotReady (75) if another process took the lease."""
        if self.lease is not None:
            self.lease.check()

    @contextmanager
    def staged(self, files: Files) -> Iterator[staged_runs.StagedRun]:
        """Yield a new run in the store, which the block writes and commits; its files
        are removed where the block raises.

        The commit checks the lease. Raises OutputError (73) if the store cannot be written.
        """
        run = staged_runs.stage(files, self.fout, self.job, self.interval, self.check)
        try:
            yield run
        except BaseException:
            run.abandon()
            raise

    def seconds(self) -> float:
        """Return seconds since the run began."""
        return time.monotonic() - self.began_ticks

    def record(self, run: Run) -> None:
        """Record the run in the run history. A failure is a warning, logged once; the
        run continues.
        """
        notes: list[str] = []
        try:
            with run_history.open_history(self.settings.state_dir, notes) as history:
                history.put(run)
                if run.state is State.RUNNING:
                    history.sweep()
        except CmssparkError as error:
            notes.append(
                f"{error.problem} ({error.found}): {error.where}; the run continues without it"
            )
        notes += self._observe(run)
        for note in notes if not self._has_warned else ():
            self._has_warned = True
            self.log(f"warning: {note}")

    def _observe(self, run: Run) -> Iterator[str]:
        """Tell the packages that observe runs; yields why one could not be told."""
        try:
            observers = with_packages(OBSERVERS, {}, lambda entry: entry.load())
        except CmssparkError as error:
            yield f"{error.problem} ({error.found}): {error.where}"
            return
        for name, observe in observers.items():
            try:
                observe(run, self.manifest)
            except Exception as error:  # whatever a package raises
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                yield f"{name} was not told of the run: {reason}"


@contextmanager
def running(
    settings: Settings,
    fout: str,
    job: str,
    interval: Interval,
    log: Callable[[str], None] | None = None,
) -> Iterator[RunContext]:
    """Run the block as a run of ``job`` for ``interval``, and record in the run history
    how it ended.
    """
    with ExitStack() as stack:
        run_context = RunContext(settings, fout, job, interval, log or progress_line.log, stack)
        run = _new_run(run_context)
        run_context.record(run)
        try:
            yield run_context
        except BaseException as raised:
            # What an error of Spark means, wherever in a run it was raised.
            if "pyspark" not in sys.modules or not isinstance(raised, Exception):
                error = raised
            else:
                from cmsspark.engines.session import unwrap_cause

                error = unwrap_cause(raised)
            if (ours := as_ours(error)) is not None:
                state, code, text = State.FAILED, int(ours.exit_code), ours.text()
            elif isinstance(error, Exception):
                state, code, text = (
                    State.FAILED,
                    int(Exit.BUG),
                    f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                )
            else:
                state, code, text = State.INTERRUPTED, int(Exit.NOT_READY), "interrupted"
            failed = replace(_with_end(run), state=state, exit_code=code, error=text)
            run_context.record(failed)
            if failed.state is State.FAILED:
                run_report.write(settings.state_dir, failed, error)
            if error is not raised:
                raise error from None
            raise
        ended = replace(_with_end(run), state=State.DONE, exit_code=0)
        if (manifest := run_context.manifest) is not None:
            ended = replace(ended, **_list_fields(manifest))
        run_context.record(ended)
        if manifest is not None:
            sizes = (size or 0 for source in manifest.inputs for _, size, _ in source.files)
            counts = manifest.reconciliation
            self_metrics.report_read(run.run, run.job, str(run_context.interval), sizes, counts)
        run_report.remove(settings.state_dir, run)


#: Measured runs whose id a run of this process has.
_NAMED: Final[set[str]] = set()


def _run_id(began: float) -> str:
    """Return the id of the measured run that this process belongs to; of more runs of
    it, of other days, a new one.
    """
    name = self_metrics.measured_run()
    if name is None or name in _NAMED:
        return dates.new_run_id(int(began * 1000))
    _NAMED.add(name)
    return name


def _new_run(run_context: RunContext) -> Run:
    began = run_context.began
    name = _run_id(began)
    interval = run_context.interval
    run = Run(
        name,
        run_context.job,
        first_day(interval),
        State.RUNNING,
        absolute(run_context.fout),
        int(began * 1000),
    )
    details = {"period": interval.isoformat()} if isinstance(interval, Period) else {}
    process = store_lease.identity()
    if (measured_run := self_metrics.measured_run()) is not None:
        process["measured"] = measured_run
    return replace(run, process=process, details=Manifest.from_dict(details))


def _with_end(run: Run) -> Run:
    now = dates.now_ms()
    return replace(run, ended_ms=now, seconds=round((now - run.began_ms) / 1000, 1))


def _list_fields(manifest: Manifest) -> dict[str, Any]:
    return {
        "stored_run": manifest.rows_run,
        "rows": next((table.rows for table in manifest.tables.values()), None),
        "is_partial": manifest.partial,
        "fingerprint": fingerprint(manifest),
        "details": Manifest.from_dict(
            {name: value for name in _DETAILS if (value := manifest.document.get(name))}
        ),
    }


def fingerprint(manifest: Manifest) -> str:
    """Return a digest of the files that a run read: names, sizes, times."""
    files = sorted(
        (source.stream or source.table or "", *file)
        for source in manifest.inputs
        for file in source.files
    )
    return hashlib.sha256(json.dumps(files).encode("utf-8", "surrogatepass")).hexdigest()


def from_manifest(manifest: Manifest, fout: str) -> Run:
    """Return a run as its manifest describes it.

    Raises ValueError where the manifest does not name its run and its day.
    """
    stored, seconds = manifest.rows_run, manifest.seconds
    began_ms = dates.run_began_ms(stored)
    run = Run(
        stored,
        manifest.job,
        date.fromisoformat(manifest.day),
        State.DONE,
        absolute(fout),
        0,
        exit_code=0,
    )
    ended_ms = began_ms if seconds is None else began_ms + int(1000 * seconds)
    return replace(
        run, began_ms=began_ms, ended_ms=ended_ms, seconds=seconds, **_list_fields(manifest)
    )


def note_published(state_dir: Path, published: Published) -> None:
    """Record the outcome of publishing a stored run. A failure is ignored: the
    documents were sent.
    """
    with suppress(CmssparkError), run_history.open_history(state_dir) as history:
        history.note_published(published)
