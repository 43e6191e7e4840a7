"""Completes a measured run that has ended: the event log, what the job reported, findings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from cmsspark.apps.monitor import findings
from cmsspark.base import self_metrics
from cmsspark.base.errors import CmssparkError
from cmsspark.filesystems.storage import is_local
from cmsspark.store.run_metrics import ExecutorEntry, Reported, RunMetrics, StageEntry


def finish(
    metrics: RunMetrics, folder: Path, options: Mapping[str, str], driver_peaks: Mapping[str, int]
) -> RunMetrics:
    """Return the run with everything that is known after its end.

    ``folder``: that of the measured run; ``driver_peaks``: of the driver's process tree, as it was sampled.
    """
    from cmsspark.apps.monitor.event_stages import merge_peaks  # a run by processes needs no event log

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
        metrics.notes.append("there is no event log (spark.eventLog.enabled): figures of stages are missing")
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
