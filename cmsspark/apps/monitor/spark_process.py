"""Measures a run by processes of this host, from inside, without a thread: what the system counted of each process.

The kernel keeps the peak of resident memory and the CPU time of a process and of its children that ended.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cmsspark.apps.monitor import findings
from cmsspark.apps.monitor.run_report import ending_lines
from cmsspark.apps.monitor.spark_finish import add_reported
from cmsspark.base import clock, self_metrics
from cmsspark.settings.settings import load_settings
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import ExecutorEntry, RunMetrics


def measuring(run: Callable[[], NoReturn]) -> NoReturn:
    """Run what ends with SystemExit, and store the measurement where run_spark began one."""
    try:
        run()
    except SystemExit as end:
        folder = os.environ.get(self_metrics.VARIABLE)
        if folder and not _is_in_spark():
            with suppress(Exception):
                _store(Path(folder), end.code if isinstance(end.code, int) else 1)
        raise


def _is_in_spark() -> bool:
    """Return whether spark-submit started this process: its parent measures the run then."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


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
    process, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    metrics.cpu_ms = round(1000 * (process.ru_utime + process.ru_stime + children.ru_utime + children.ru_stime))
    metrics.sources.append("samples")
    # The system counts resident memory in kB.
    metrics.executors = [ExecutorEntry("driver", metrics.host, 1, peaks=_peaks(process.ru_maxrss))]
    if children.ru_maxrss and metrics.stages:
        count = len(os.sched_getaffinity(0))
        metrics.executors.append(ExecutorEntry("workers", metrics.host, count, peaks=_peaks(children.ru_maxrss)))


def _peaks(kilobytes: int) -> dict[str, int]:
    return {"ProcessTreePythonRSSMemory": 1024 * kilobytes}
