"""What a store contains: the days and periods that have results, and the manifests of all runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cmsspark.base.errors import CmssparkError
from cmsspark.base.periods import Interval, named
from cmsspark.filesystems.storage import Files, join


def manifests(files: Files, fout: str) -> Iterator[dict[str, Any]]:
    """Yield the manifest of every run in the store that was once current, job by job, oldest day first.

    Skips unreadable manifests and folders that hold no results.
    """
    if files.stat(fout) is None:
        return
    for job in _folders(files, fout):
        for day in _folders(files, job):
            runs = join(day, "runs")
            for run in _folders(files, runs) if files.stat(runs) is not None else ():
                try:
                    manifest = json.loads(files.read_bytes(join(run, "manifest.json")))
                except (CmssparkError, ValueError):
                    continue
                if isinstance(manifest, dict):
                    yield manifest


def stored_intervals(files: Files, fout: str, job: str) -> list[Interval]:
    """Return the days and periods that a job has a current result of, in the order of the listing."""
    base = join(fout, job)
    intervals: list[Interval] = []
    for entry in files.list_dir(base) if files.stat(base) is not None else ():
        try:
            interval = named(entry.name)
        except ValueError:
            continue
        if files.stat(join(entry.path, "CURRENT")) is not None:
            intervals.append(interval)
    return intervals


def _folders(files: Files, path: str) -> list[str]:
    return [entry.path for entry in files.list_dir(path) if entry.is_dir and not entry.name.startswith(".")]
