"""Completes a measured run that has ended: the event log, what the job reported, findings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cmsspark import measured
from cmsspark.errors import CmssparkError
from cmsspark.monitor import findings
from cmsspark.monitor.event_log import EventLogReader, read_event_log
from cmsspark.monitor.event_log_files import find_log, is_log_name
from cmsspark.monitor.event_stages import merge_peaks
from cmsspark.monitor.spark_reported import add_reported
from cmsspark.storage import is_local, local_path
from cmsspark.store.run_metrics import ExecutorEntry, RunMetrics

#: Lines at the begin of a log among which Spark's properties stand.
_HEAD: Final = 30
#: The clock of a file system may be this much behind.
_EARLIER_S: Final = 5.0


def finish(
    metrics: RunMetrics, folder: Path, options: Mapping[str, str], driver_peaks: Mapping[str, int]
) -> RunMetrics:
    """The run with everything that is known after its end. ``folder``: that of the measured run; ``driver_peaks``: of
    the driver's process tree, as it was sampled.
    """
    add_reported(metrics, folder / measured.FILE)
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
    """The run with its event log, which replaces what REST said of executors."""
    location = options.get("spark.eventLog.dir", "")
    if options.get("spark.eventLog.enabled") != "true" or not location:
        metrics.notes.append("there is no event log (spark.eventLog.enabled): figures of stages are missing")
        return metrics
    if not is_local(location):
        metrics.notes.append(f"the event log is in {location}: cmsspark monitor events reads it there")
        return metrics
    log = find_event_log(Path(local_path(location)), metrics.run, metrics.began_ms)
    if log is None:
        metrics.notes.append("Spark wrote no event log: it did not start, or was ended before it did")
        return metrics
    by_rest = {entry.executor: entry for entry in metrics.executors}
    began_ms, ended_ms = metrics.began_ms, metrics.ended_ms
    metrics.event_log = str(log)
    result = read_event_log(find_log(str(log)), metrics).metrics()
    # The run is longer than its application.
    result.began_ms, result.ended_ms = began_ms, ended_ms
    for entry in result.executors:
        # Spark logs no peak of a driver without tasks; REST has it.
        if (rest := by_rest.pop(entry.executor, None)) is not None:
            merge_peaks(entry.peaks, rest.peaks)
    result.executors += by_rest.values()
    return result


def find_event_log(folder: Path, run: str, began_ms: int) -> Path | None:
    """The event log in ``folder`` that the measured run wrote: its first lines name the run."""
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
    except OSError:
        return None
    for entry in entries:
        with suppress(OSError, CmssparkError):
            if not is_log_name(entry.name) or entry.stat().st_mtime < began_ms / 1000 - _EARLIER_S:
                continue
            reader = EventLogReader()
            for number, line in enumerate(find_log(str(entry))):
                reader.take(line)
                if reader.measured_run or number > _HEAD:
                    break
            if reader.measured_run == run:
                return entry
    return None
