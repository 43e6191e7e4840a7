"""Leftovers that ``cmsspark lab prune`` removes: leases of days long done, and damaged run histories set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cmsspark.base.errors import InputMissing
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import lease
from cmsspark.store.run_history import FILE


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
    """Leases last written before ``before_ms`` (UTC ms); a holder renews its lease every minute."""
    base = join(fout, ".leases")
    if files.stat(base) is None:
        return
    for job in files.list_dir(base):
        for entry in files.list_dir(job.path) if job.is_dir else ():
            if entry.is_dir and all(file.mtime_ms < before_ms for file in files.list_dir(entry.path)):
                yield OldLease(job.name, entry.name, entry.path)


def remove_lease(files: Files, old: OldLease) -> None:
    """Take the lease and remove its folder. Raises NotReady (75) where another process holds it.

    A process that listed the folder before finds this holder, or nothing, and starts from the first number.
    """
    try:
        with lease.hold(files, old.path, old.what):
            files.delete(old.path)
    except InputMissing:
        return  # another process removed it at the same time


def damaged_histories(state_dir: Path, before_ms: int) -> list[Path]:
    """Damaged run histories that were set aside before ``before_ms``; none where no working one exists."""
    if not (state_dir / FILE).exists():
        return []
    return sorted(
        path for path in state_dir.glob(f"{FILE}*.damaged-*") if path.stat().st_mtime_ns // 1_000_000 < before_ms
    )
