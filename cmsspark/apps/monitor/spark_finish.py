"""Completes a measured run that has ended: the event log, what the job reported, findings.

A run by processes of this host is measured from inside, without a thread: the kernel
keeps the peak of resident memory and the CPU time of a process and of its children that
ended.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from cmsspark.apps.monitor import findings
from cmsspark.apps.monitor.run_report import ending_lines
from cmsspark.base import clock, self_metrics
from cmsspark.base.errors import CmssparkError
from cmsspark.filesystems.storage import is_local
from cmsspark.settings.settings import load_settings
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import ExecutorEntry, Reported, RunMetrics, StageEntry


def finish(
    metrics: RunMetrics, folder: Path, options: Mapping[str, str], driver_peaks: Mapping[str, int]
) -> RunMetrics:
    """Return the run with everything that is known after its end.

    ``folder``: that of the measured run; ``driver_peaks``: of the driver's process
    tree, as it was sampled.
    """
    from cmsspark.apps.monitor.event_stages import (
        merge_peaks,
    )  # a run by processes needs no event log

    add_reported(metrics, folder / self_metrics.FILE)
    metrics = _with_events(metrics, options)
    if metrics.deploy_mode != "cluster" and driver_peaks:
        driver = next((entry for entry in metrics.executors if entry.executor == "driver"), None)
        if driver is None:
            driver = ExecutorEntry("driver", metrics.host)
            metrics.executors.append(driver)
        merge_peaks(driver.peaks, driver_peaks)
    metrics.findings = findings.find(metrics)
    return metrics


def _with_events(metrics: RunMetrics, options: Mapping[str, str]) -> RunMetrics:
    """Return the run with its event log, which replaces the figures of REST on executors."""
    from cmsspark.apps.monitor.event_log_search import pending_note, with_event_log

    location = options.get("spark.eventLog.dir", "")
    if options.get("spark.eventLog.enabled") != "true" or not location:
        metrics.notes.append(
            "there is no event log (spark.eventLog.enabled): figures of stages are missing"
        )
        return metrics
    if not is_local(location):
        metrics.pending_events = location
        metrics.notes.append(pending_note(location))
        return metrics
    try:
        return with_event_log(metrics, location)
    except CmssparkError as error:
        metrics.notes.append(f"the event log cannot be read: {error.problem}")
        return metrics


class ReportedLine(msgspec.Struct):
    """A line of the file: files that were read, or a stage of processes."""

    read: Reported | None = None
    stage: StageEntry | None = None


def add_reported(metrics: RunMetrics, file: Path) -> None:
    """Take the lines of a file; those that are cut or of another form are left out."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(msgspec.MsgspecError):
            entry = msgspec.json.decode(line, type=ReportedLine)
            if entry.read is not None:
                metrics.reported.append(entry.read)
            if entry.stage is not None:
                _add_stage(metrics, entry.stage)
    if lines:
        metrics.sources.append("reported")


def _add_stage(metrics: RunMetrics, stage: StageEntry) -> None:
    metrics.stages.append(stage)
    metrics.stage_count += 1
    metrics.totals.tasks += stage.totals.tasks
    metrics.totals.task_ms += stage.totals.task_ms
    metrics.totals.run_ms += stage.totals.run_ms
    if stage.submitted_ms is not None and stage.completed_ms is not None:
        metrics.task_spans.append((stage.submitted_ms, stage.completed_ms))


def measuring(run: Callable[[], NoReturn]) -> NoReturn:
    """Run what ends with SystemExit, and store the measurement where run_spark began one."""
    try:
        run()
    except SystemExit as end:
        folder = os.environ.get(self_metrics.VARIABLE)
        # Where spark-submit started this process, its parent measures the run.
        if folder and not {"SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT"} & os.environ.keys():
            with suppress(Exception):
                _store(Path(folder), end.code if isinstance(end.code, int) else 1)
        raise


def _store(folder: Path, code: int) -> None:
    path = folder / "run.json"
    metrics = run_metrics.read(path)
    metrics.ended_ms, metrics.exit_code = clock.now_ms(), code
    metrics.state = "DONE" if code == 0 else "FAILED"
    add_reported(metrics, folder / self_metrics.FILE)
    _add_processes(metrics)
    metrics.findings = findings.find(metrics)
    run_metrics.write(path, metrics)
    for text in ending_lines(metrics):
        sys.stderr.write(f"run_spark: {text}\n")
    # This process was started by run_spark, whose settings it has by the environment.
    settings = load_settings(None, os.environ)
    if settings.metrics.host is not None:
        from cmsspark.apps.monitor.live_metrics import send_run

        send_run(settings.metrics, path)


def _add_processes(metrics: RunMetrics) -> None:
    process, children = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    metrics.cpu_ms = round(
        1000 * (process.ru_utime + process.ru_stime + children.ru_utime + children.ru_stime)
    )
    metrics.sources.append("samples")
    # The system counts resident memory in kB.
    metrics.executors = [ExecutorEntry("driver", metrics.host, 1, peaks=_peaks(process.ru_maxrss))]
    if children.ru_maxrss and metrics.stages:
        count = len(os.sched_getaffinity(0))
        metrics.executors.append(
            ExecutorEntry("workers", metrics.host, count, peaks=_peaks(children.ru_maxrss))
        )


def _peaks(kilobytes: int) -> dict[str, int]:
    return {"ProcessTreePythonRSSMemory": 1024 * kilobytes}
