"""Results in the store: days and periods that have them, the current run of each, its
tables and its manifest.

Layout (``docs/architecture.md``): ``FOUT/<job>/<day>/CURRENT`` names the current run;
``runs/<id>/`` holds its tables and its ``manifest.json``.
:mod:`cmsspark.store.staged_runs` writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from typing import Any

import msgspec

from cmsspark.base.errors import CmssparkError, DataError, InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Interval, Period, named, options
from cmsspark.filesystems.storage import Files, is_local, join, local_path
from cmsspark.store.own_jobs import JOBS

#: The key of CURRENT that names the run whose rows a compacted run has, as in its manifest.
ROWS_OF = "rows_of"


class CurrentTable(msgspec.Struct, frozen=True):
    """A table's current result: the location of its folder of part files, and its run's manifest."""

    path: str
    manifest: Manifest


def _next_step(job: str, interval: Interval, fout: str) -> str:
    """Return the command that makes the result of a job, or which results it has."""
    if job in JOBS and JOBS[job].of_periods != isinstance(interval, Period):
        kind = (
            "periods: give --week, --month or --from"
            if JOBS[job].of_periods
            else "days: give --date"
        )
        return f"results of {job} are of {kind}"
    return f"run_spark {job} {options(interval)} --fout {fout}"


def current(files: Files, fout: str, job: str, table: str, interval: Interval) -> CurrentTable:
    """Return the current result of ``table`` for a day or a period.

    Raises InputMissing (66) that names the days there are, DataError (65) where the
    store is damaged.
    """
    folder = interval_folder(fout, job, interval)
    if files.stat(join(folder, "CURRENT")) is None:
        raise InputMissing(
            f"no result of {table} is stored for {interval}",
            where=join(fout, job),
            found=_stored_summary(files, fout, job),
            next_step=_next_step(job, interval, fout),
        )
    again = f"run {job} again for {interval}"
    run, path, manifest = current_run(files, fout, job, interval)
    if not manifest.tables:
        raise DataError(f"the manifest of run {run} names no tables", where=path, next_step=again)
    if table not in manifest.tables:
        raise InputMissing(
            f"run {run} has no table {table}", where=path, found=", ".join(manifest.tables)
        )
    if files.stat(join(path, table)) is None:
        raise DataError(f"the table {table} of run {run} is gone", where=path, next_step=again)
    return CurrentTable(join(path, table), manifest)


def current_run(
    files: Files, fout: str, job: str, interval: Interval
) -> tuple[str, str, Manifest]:
    """Return the id, the folder and the manifest of the current run of a job's day or period.

    Raises InputMissing (66) if there is none, DataError (65) where it is damaged.
    """
    folder, again = interval_folder(fout, job, interval), f"run {job} again for {interval}"
    pointer = join(folder, "CURRENT")
    run = _read_json(files, pointer, again).get("run")
    if not isinstance(run, str):
        raise DataError("CURRENT does not name a run", where=pointer, next_step=again)
    path = join(folder, "runs", run)
    if files.stat(join(path, "manifest.json")) is None:
        raise DataError(f"the manifest of run {run} is gone", where=path, next_step=again)
    return run, path, read_manifest(files, join(path, "manifest.json"), again)


def run_table(
    files: Files, fout: str, job: str, table: str, interval: Interval, run: str
) -> CurrentTable:
    """Return the result of ``table`` in a run of a day or period, current or not;
    ``run`` is the beginning of its id.

    Raises InputMissing (66) with the stored runs where none or several match; DataError
    (65) for a damaged one.
    """
    runs = join(interval_folder(fout, job, interval), "runs")
    ids = [entry.name for entry in files.list_dir(runs)] if files.stat(runs) is not None else []
    matches = [name for name in ids if name.startswith(run)]
    if len(matches) != 1:
        raise InputMissing(
            f"no run of {job} for {interval} has an id that begins with {run}",
            where=runs,
            found=", ".join(ids) or "no runs",
            next_step="give more letters of one of these ids",
        )
    path = join(runs, matches[0])
    manifest = read_manifest(files, join(path, "manifest.json"), "compare another run")
    if table not in manifest.tables or files.stat(join(path, table)) is None:
        raise DataError(
            f"run {matches[0]} has no table {table}", where=path, next_step="compare another run"
        )
    return CurrentTable(join(path, table), manifest)


def _read_json(files: Files, path: str, next_step: str | None) -> dict[str, Any]:
    """Return the JSON object in a file of the store. Raises DataError (65) if the
    file holds none.
    """
    try:
        document = json.loads(files.read_bytes(path))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise DataError(
            "not a JSON object", where=path, found="something else", next_step=next_step
        )
    return document


def read_manifest(files: Files, path: str, next_step: str | None = None) -> Manifest:
    """Return the manifest in a file. Raises DataError (65) if the file holds none."""
    try:
        return Manifest.from_dict(_read_json(files, path, next_step))
    except ValueError as error:
        raise DataError(
            "a manifest is damaged", where=path, found=str(error), next_step=next_step
        ) from None


def history(files: Files, fout: str, job: str, day: date, count: int) -> list[Manifest]:
    """Return the manifests of the last ``count`` stored days before ``day``, newest
    first; skips unreadable ones.
    """
    base = join(fout, job)
    if files.stat(base) is None:
        return []
    names = sorted((entry.name for entry in files.list_dir(base) if entry.is_dir), reverse=True)
    recent = []
    for name in [name for name in names if name < day.isoformat()][:count]:
        with suppress(CmssparkError, ValueError):
            _, _, manifest = current_run(files, fout, job, named(name))
            recent.append(manifest)
    return recent


def manifests(files: Files, fout: str) -> Iterator[dict[str, Any]]:
    """Yield the manifest of every run in the store that was once current, job by job,
    oldest day first.

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
    """Return the names of the folders in a folder, without hidden ones; none where it
    does not exist.
    """
    try:
        return [
            entry.name
            for entry in files.list_dir(path)
            if entry.is_dir and not entry.name.startswith(".")
        ]
    except InputMissing:
        return []


def spark_location(location: str) -> str:
    """Return a location as Spark takes it; local ones get their scheme, or a cluster
    would apply its default.
    """
    return "file://" + _absolute(location) if is_local(location) else location


def _absolute(location: str) -> str:
    return os.path.abspath(local_path(location))


def interval_folder(fout: str, job: str, interval: Interval) -> str:
    """Return the folder of a job's day or period."""
    return join(fout if not is_local(fout) else _absolute(fout), job, interval.isoformat())


def _stored_summary(files: Files, fout: str, job: str) -> str:
    base = join(fout, job)
    if files.stat(base) is None:
        return f"nothing of {job}"
    folders = [entry for entry in files.list_dir(base) if entry.is_dir]
    # A day whose runs all failed has a folder but no result.
    days = [entry.name for entry in folders if files.stat(join(entry.path, "CURRENT")) is not None]
    shown = ", ".join(days[-10:])
    return (
        f"days {shown}" + (f" and {len(days) - 10} before" if len(days) > 10 else "")
        if days
        else "no day"
    )


def stored_results(files: Files, fout: str) -> Iterator[tuple[str, Interval]]:
    """Yield jobs and their days and periods that have a result, job by job, oldest first."""
    for job in folder_names(files, fout):
        for interval in stored_intervals(files, fout, job):
            yield job, interval
