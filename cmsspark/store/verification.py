"""Verification of a store: the bytes of all part files beside the SHA-256 in the
manifests of their runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Interval
from cmsspark.filesystems.storage import Files, join
from cmsspark.store import results
from cmsspark.store.part_checks import check_bytes, stored_parts
from cmsspark.store.results import CurrentTable, stored_results


@dataclass
class RunCheck:
    """The check of one run: parts and bytes that were compared, tables without
    checksums, and errors.
    """

    job: str
    interval: Interval
    part_count: int = 0
    byte_count: int = 0
    unchecked: list[str] = field(default_factory=list)
    errors: list[CmssparkError] = field(default_factory=list)


def check_runs(files: Files, fout: str, *, all_runs: bool = False) -> Iterator[RunCheck]:
    """Check the current run of each day and period, with ``all_runs`` also the runs
    that it replaced.
    """
    for job, interval in stored_results(files, fout):
        for manifest, folder in _runs(files, fout, job, interval, all_runs=all_runs):
            check = RunCheck(job, interval)
            if isinstance(manifest, CmssparkError):
                check.errors.append(manifest)
            else:
                _check(files, manifest, folder, check)
            yield check


def _runs(
    files: Files, fout: str, job: str, interval: Interval, *, all_runs: bool
) -> Iterator[tuple[Manifest | CmssparkError, str]]:
    """Yield the manifest, or the error of reading it, and the folder of each run."""
    current_id = ""
    try:
        current_id, path, manifest = results.current_run(files, fout, job, interval)
        yield manifest, path
    except CmssparkError as error:
        yield error, ""
    for run in files.list_dir(join(fout, job, interval.isoformat(), "runs")) if all_runs else ():
        path = join(run.path, "manifest.json")
        # A run without a manifest never ended.
        if run.name == current_id or files.stat(path) is None:
            continue
        try:
            yield results.read_manifest(files, path), run.path
        except InputMissing:
            continue  # it was removed meanwhile
        except CmssparkError as error:
            yield error, run.path


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
