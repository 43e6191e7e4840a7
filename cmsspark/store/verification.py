"""Verification of a store: the bytes of all part files beside the SHA-256 in the
manifests of their runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Interval
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import results
from cmsspark.store.part_checks import check_bytes, stored_parts
from cmsspark.store.results import CurrentTable, stored_results
from cmsspark.store.run_history import Check, RunHistory

#: Each day one in so many results is checked.
SHARE: Final = 30
_DAY_MS: Final = 86_400_000


@dataclass
class RunCheck:
    """The check of one run: parts and bytes that were compared, tables without
    checksums, and errors.
    """

    job: str
    interval: Interval
    run: str = ""
    is_current: bool = True
    part_count: int = 0
    byte_count: int = 0
    unchecked: list[str] = field(default_factory=list)
    errors: list[CmssparkError] = field(default_factory=list)

    def as_note(self, at_ms: int) -> Check:
        """Return the check as the run history keeps it."""
        error = self.errors[0].text() if self.errors else ""
        interval = self.interval.isoformat()
        return Check(self.job, interval, self.run, at_ms, self.part_count, error)


def check_runs(files: Files, fout: str, *, all_runs: bool = False) -> Iterator[RunCheck]:
    """Check the current run of each day and period, with ``all_runs`` also the runs
    that it replaced.
    """
    for job, interval in stored_results(files, fout):
        check = check_result(files, fout, job, interval)
        yield check
        if all_runs:
            yield from _replaced_runs(files, fout, job, interval, check.run)


def check_share(files: Files, fout: str, history: RunHistory, now_ms: int) -> Iterator[RunCheck]:
    """Check the results whose turn it is: one in ``SHARE`` each day in UTC, those that
    were damaged first, then those that were not checked for the longest time. A second
    call on a day checks what the first one did not.
    """
    notes = history.checks(fout)
    stored = list(stored_results(files, fout))
    due: list[tuple[bool, int, str, str, Interval]] = []
    for job, interval in stored:
        note = notes.get((job, interval.isoformat()), Check(job, "", "", 0, 0))
        if note.at_ms // _DAY_MS < now_ms // _DAY_MS:
            due.append((not note.error, note.at_ms, interval.isoformat(), job, interval))
    due.sort(key=lambda entry: entry[:4])
    damaged = sum(not is_intact for is_intact, *_ in due)
    count = max(-(-len(stored) // SHARE) - (len(stored) - len(due)), damaged)
    for *_, job, interval in due[: max(0, count)]:
        check = check_result(files, fout, job, interval)
        history.note_check(fout, check.as_note(now_ms))
        yield check


def check_result(files: Files, fout: str, job: str, interval: Interval) -> RunCheck:
    """Check the current run of a day or period."""
    check = RunCheck(job, interval)
    try:
        check.run, path, manifest = results.current_run(files, fout, job, interval)
    except CmssparkError as error:
        check.errors.append(error)
    else:
        _check(files, manifest, path, check)
    return check


def _replaced_runs(
    files: Files, fout: str, job: str, interval: Interval, current_id: str
) -> Iterator[RunCheck]:
    for run in files.list_dir(join(fout, job, interval.isoformat(), "runs")):
        path = join(run.path, "manifest.json")
        # A run without a manifest never ended.
        if run.name == current_id or files.stat(path) is None:
            continue
        check = RunCheck(job, interval, run.name, is_current=False)
        try:
            _check(files, results.read_manifest(files, path), run.path, check)
        except InputMissing:
            continue  # it was removed meanwhile
        except CmssparkError as error:
            check.errors.append(error)
        yield check


def _check(files: Files, manifest: Manifest, folder: str, check: RunCheck) -> None:
    for table, entry in manifest.tables.items():
        if entry.sha256 is None:
            check.unchecked.append(table)
            continue
        try:
            parts = stored_parts(files, CurrentTable(join(folder, table), manifest), table)
        except CmssparkError as error:
            check.errors.append(error)
            continue
        for part in parts:
            try:
                check_bytes(files, part)
            except CmssparkError as error:
                check.errors.append(error)
            check.part_count += 1
            check.byte_count += part.size
