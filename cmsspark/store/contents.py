"""What a store contains: the days and periods that have results, and the manifests of all runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.periods import Interval, named
from cmsspark.filesystems.storage import Files, join


def manifests(files: Files, fout: str) -> Iterator[dict[str, Any]]:
    """Yield the manifest of every run in the store that was once current, job by job, oldest day first.

    Skips unreadable manifests and folders that hold no results.
    """
    for job in folder_names(files, fout):
        for day in folder_names(files, join(fout, job)):
            runs = join(fout, job, day, "runs")
            for run in folder_names(files, runs):
                try:
                    manifest = json.loads(files.read_bytes(join(runs, run, "manifest.json")))
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


def folder_names(files: Files, path: str) -> list[str]:
    """Return the names of the folders in a folder, without hidden ones; none where it does not exist."""
    try:
        return [entry.name for entry in files.list_dir(path) if entry.is_dir and not entry.name.startswith(".")]
    except InputMissing:
        return []
