"""Measured runs as they are stored: the latest of a job, the one of an id, and states of runs that were killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cmsspark.errors import InputMissing
from cmsspark.store import process_identity, run_metrics
from cmsspark.store.run_metrics import RunMetrics

#: Ids that Spark's masters give.
_APPLICATION: Final = re.compile(r"application_|app-|local-|spark-")


def measured_runs(state_dir: Path, start: str = "") -> Iterator[RunMetrics]:
    """Measured runs whose id begins with ``start``, the latest first; files that are damaged are left out."""
    folder = run_metrics.runs_folder(state_dir)
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else iter(())
    for name in sorted((name for name in names if name.startswith(start)), reverse=True):
        with suppress(OSError, ValueError):
            yield as_of_now(run_metrics.read(run_metrics.file_of(state_dir, name)))


def of_job(state_dir: Path, job: str, count: int) -> list[RunMetrics]:
    """The latest ended runs of a job, or of a script by its file's name. Raises InputMissing (66) for none."""
    name = Path(job).name
    found = []
    seen = set()
    for metrics in measured_runs(state_dir):
        seen.add(metrics.job)
        if metrics.job == name and metrics.state != "RUNNING":
            found.append(metrics)
            if len(found) == count:
                break
    if not found:
        raise InputMissing(
            f"a measured run of {name} is wanted",
            where=run_metrics.runs_folder(state_dir),
            found=f"runs of {', '.join(sorted(seen)[:10])}" if seen else "no measured run",
            next_step=f"run_spark {job} measures one, unless --no-monitor, the settings or CMSSPARK_MONITOR say no",
        )
    return found


def find_run(state_dir: Path, name: str) -> RunMetrics | None:
    """The measured run whose id begins with ``name``, or whose application has that id; None for none or several."""
    found = list(measured_runs(state_dir, name)) if name else []
    if not found and _APPLICATION.match(name):
        found = [metrics for metrics in measured_runs(state_dir) if metrics.application == name][:1]
    return found[0] if len(found) == 1 else None


def as_of_now(metrics: RunMetrics) -> RunMetrics:
    """The run; one whose process is gone without a word has failed."""
    if metrics.state == "RUNNING" and process_identity.lives(metrics.process) is False:
        metrics.state = "FAILED"
        metrics.notes.append("run_spark was killed: what was measured until then is shown")
    return metrics
