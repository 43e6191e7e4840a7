"""What leases and ledgers leave behind: leases of days long done, and damaged ledgers that were set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cmsspark.errors import InputMissing
from cmsspark.storage import Files, join
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
        """What it was for."""
        return f"{self.job} of {self.name}"


def old_leases(files: Files, fout: str, before_ms: int) -> Iterator[OldLease]:
    """Leases in which nothing was written since ``before_ms`` (UTC ms): who holds one renews it every minute."""
    base = join(fout, ".leases")
    if files.stat(base) is None:
        return
    for job in files.list_dir(base):
        for entry in files.list_dir(job.path) if job.is_dir else ():
            if entry.is_dir and all(one.mtime_ms < before_ms for one in files.list_dir(entry.path)):
                yield OldLease(job.name, entry.name, entry.path)


def remove_lease(files: Files, old: OldLease) -> None:
    """Take the lease and remove its folder. Raises NotReady (75) where somebody holds it.

    Whoever looked before that finds either this holder, or nothing, and begins to count anew.
    """
    try:
        with lease.held(files, old.path, old.what):
            files.delete(old.path)
    except InputMissing:
        return  # gone at the same time: another one prunes


def old_ledgers(state_dir: Path, before_ms: int) -> list[Path]:
    """Damaged ledgers that were set aside before ``before_ms``, while there is one that works."""
    if not (state_dir / FILE).exists():
        return []
    return sorted(
        path for path in state_dir.glob(f"{FILE}*.damaged-*") if path.stat().st_mtime_ns // 1_000_000 < before_ms
    )
