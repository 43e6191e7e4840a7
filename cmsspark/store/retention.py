"""What may be removed: runs that are not current, leases of days long done, damaged run
histories set aside.

Never a day's current run, nor anything of a day without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.periods import Interval, named
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import lease, results
from cmsspark.store.results import folder_names
from cmsspark.store.run_history import FILE


@dataclass(frozen=True)
class OldRun:
    """A run that another one replaced, or that never ended; ``size`` in bytes of its files."""

    job: str
    interval: Interval
    path: str
    size: int
    why: str


def old_runs(files: Files, fout: str, before_ms: int) -> Iterator[OldRun]:
    """Yield runs last written before ``before_ms`` (UTC ms) that are not current, job
    by job, oldest day first.

    Skips days whose current run is unknown, or has lost its manifest or a table: an
    older run may be the only copy.
    """
    for job in folder_names(files, fout):
        for name in folder_names(files, join(fout, job)):
            try:
                interval = named(name)
            except ValueError:
                continue
            current_id = current_run(files, fout, job, interval)
            if current_id is None:
                continue
            for run in files.list_dir(join(fout, job, name, "runs")):
                if run.name != current_id and run.is_dir and run.mtime_ms < before_ms:
                    is_whole = files.stat(join(run.path, "manifest.json")) is not None
                    reason = "replaced by another run" if is_whole else "never ended"
                    yield OldRun(job, interval, run.path, _size(files, run.path), reason)


def current_run(files: Files, fout: str, job: str, interval: Interval) -> str | None:
    """Return the id of the current run of a day or period; None if it is not complete."""
    try:
        run, path, manifest = results.current_run(files, fout, job, interval)
        is_whole = all(files.stat(join(path, table)) is not None for table in manifest.tables)
    except CmssparkError:
        return None
    return run if is_whole else None


def _size(files: Files, path: str) -> int:
    return sum(
        _size(files, entry.path) if entry.is_dir else max(entry.size, 0)
        for entry in files.list_dir(path)
    )


@dataclass(frozen=True)
class OldLease:
    """The lease of a job's day or period, last written long ago."""

    job: str
    name: str
    path: str

    @property
    def what(self) -> str:
        """The work that it protected, for messages."""
        return f"{self.job} of {self.name}"


def old_leases(files: Files, fout: str, before_ms: int) -> Iterator[OldLease]:
    """Yield leases last written before ``before_ms`` (UTC ms); a holder renews its
    lease every minute.
    """
    base = join(fout, ".leases")
    if files.stat(base) is None:
        return
    for job in files.list_dir(base):
        for entry in files.list_dir(job.path) if job.is_dir else ():
            if entry.is_dir and all(
                file.mtime_ms < before_ms for file in files.list_dir(entry.path)
            ):
                yield OldLease(job.name, entry.name, entry.path)


def remove_lease(files: Files, old: OldLease) -> None:
    """Take the lease and remove its folder. Raises NotReady (75) if another process holds it.

    A process that listed the folder before finds this holder, or nothing, and starts
    from the first number.
    """
    try:
        with lease.hold(files, old.path, old.what):
            files.delete(old.path)
    except InputMissing:
        return  # another process removed it at the same time


def damaged_histories(state_dir: Path, before_ms: int) -> list[Path]:
    """Return damaged run histories that were set aside before ``before_ms``; none where
    no working one exists.
    """
    if not (state_dir / FILE).exists():
        return []
    return sorted(
        path
        for path in state_dir.glob(f"{FILE}*.damaged-*")
        if path.stat().st_mtime_ns // 1_000_000 < before_ms
    )
