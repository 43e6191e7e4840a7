"""Measured runs as they are stored: the latest of a job, the one of an id, and states
of runs that were killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import RunMetrics

#: Ids that Spark's masters give.
_APPLICATION: Final = re.compile(r"application_|app-|local-|spark-")


def measured_runs(state_dir: Path, start: str = "") -> Iterator[RunMetrics]:
    """Measured runs whose id begins with ``start``, the latest first; files that are
    damaged are left out.
    """
    folder = run_metrics.runs_folder(state_dir)
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else iter(())
    for name in sorted((name for name in names if name.startswith(start)), reverse=True):
        with suppress(OSError, ValueError):
            yield run_metrics.as_of_now(run_metrics.read(run_metrics.run_file(state_dir, name)))


def find_job_runs(state_dir: Path, job: str, count: int) -> list[RunMetrics]:
    """Return the latest ended runs of a job, or of a script by its file's name. Raises
    InputMissing (66) for none.
    """
    name = Path(job).name
    runs = []
    seen = set()
    is_running = False
    for metrics in measured_runs(state_dir):
        seen.add(metrics.job)
        is_running = is_running or (metrics.job == name and metrics.state == "RUNNING")
        if metrics.job == name and metrics.state != "RUNNING":
            runs.append(metrics)
            if len(runs) == count:
                break
    if not runs and is_running:
        raise InputMissing(
            f"no measured run of {name} has ended",
            where=run_metrics.runs_folder(state_dir),
            found="one that still runs",
            next_step=f"cmsspark lab advise {job}, when it has ended",
        )
    if not runs:
        damaged = sum(1 for _ in _unreadable(state_dir))
        present = f"runs of {', '.join(sorted(seen)[:10])}" if seen else "no measured run"
        raise InputMissing(
            f"no run of {name} was measured",
            where=run_metrics.runs_folder(state_dir),
            found=present
            + (f", and {damaged} of which the file cannot be read" if damaged else ""),
            next_step=f"run_spark {job} measures one, unless --no-monitor, settings or CMSSPARK_MONITOR turn it off",
        )
    return runs


def _unreadable(state_dir: Path, start: str = "") -> Iterator[tuple[Path, str]]:
    """Files of measured runs whose id begins with ``start`` that cannot be read, with the reason."""
    folder = run_metrics.runs_folder(state_dir)
    for file in sorted(folder.glob("*/run.json")) if folder.is_dir() else ():
        if file.parent.name.startswith(start):
            try:
                run_metrics.read(file)
            except OSError as error:
                yield file, error.strerror or type(error).__name__
            except ValueError as error:
                yield file, str(error)


def require_one(state_dir: Path, name: str) -> None:
    """Raise what :func:`find_run` found none for: DataError (65) for a file that cannot
    be read, UsageError (2) for an id with which several runs begin; nothing where no
    measured run is meant.
    """
    ids = [metrics.run for metrics in measured_runs(state_dir, name)] if name else []
    if len(ids) > 1:
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        raise UsageError(
            f"the ids of several measured runs begin with {name!r}",
            found=", ".join(ids[:5]) + more,
            next_step="write more of the id",
        )
    for file, reason in _unreadable(state_dir, name) if name and not ids else ():
        raise DataError(
            "the file of a measured run cannot be read",
            where=file,
            found=reason,
            next_step="a later version of cmsspark may have written it; else delete its folder: it holds "
            "measurements only",
        )


def find_run(state_dir: Path, name: str) -> RunMetrics | None:
    """Return the run of an application, or whose id begins with ``name``; None for none
    or several.
    """
    runs = list(measured_runs(state_dir, name)) if name else []
    if not runs and _APPLICATION.match(name):
        runs = [metrics for metrics in measured_runs(state_dir) if metrics.application == name][:1]
    return runs[0] if len(runs) == 1 else None
