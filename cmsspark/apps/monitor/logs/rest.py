"""Spark's REST interface while an application runs on this host: executors, and stages at work.

Only ports of Spark's page are tried, among those on which the driver listens: others
would log the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import psutil

from cmsspark.apps.monitor.logs.reader import merge_peaks
from cmsspark.apps.monitor.memory_sizes import count
from cmsspark.base.sockets import ConnectionLost
from cmsspark.settings.http_client import fetch_json
from cmsspark.store.run_metrics import ExecutorEntry, RunMetrics, Spread, StageEntry, TaskTotals

_FIRST_PORT: Final = 4040
_RETRIES: Final = 16
#: The answer costs the driver CPU time: polling takes at most this share of the time.
_SHARE: Final = 0.005
_LEAST_S: Final = 2.0
_TIMEOUT_S: Final = 3.0


class RestPoller:
    """Polls the application of the driver ``pid``. What it has is of the last answer."""

    def __init__(self, pid: int, options: Mapping[str, str]) -> None:
        self._pid = pid
        first = count(options.get("spark.ui.port"), _FIRST_PORT)
        retries = options.get("spark.port.maxRetries", "")
        self._ports = range(first, first + 1 + (int(retries) if retries.isdigit() else _RETRIES))
        self._base: str | None = None
        self._next = 0.0
        self.executors: list[ExecutorEntry] = []
        self.stages: list[StageEntry] = []
        self.active_tasks: int | None = None
        self.answers = 0

    def poll(self) -> None:
        """Ask, if it is time to."""
        began = time.monotonic()
        if began < self._next:
            return
        for port in sorted(listening(self._pid) & set(self._ports)) if not self._base else ():
            with suppress(ConnectionLost, ValueError, KeyError, TypeError, IndexError):
                base = f"http://127.0.0.1:{port}/api/v1/applications"
                self._base = f"{base}/{fetch_json(base, _TIMEOUT_S)[0]['id']}"
                break
        if self._base is not None:
            with suppress(ConnectionLost, ValueError, KeyError, TypeError):
                rows = fetch_json(f"{self._base}/allexecutors", _TIMEOUT_S)
                earlier = {entry.executor: entry.peaks for entry in self.executors}
                self.executors = [executor(row) for row in rows]
                for entry in self.executors:
                    merge_peaks(entry.peaks, earlier.get(entry.executor))
                self.active_tasks = sum(
                    int(row.get("activeTasks", 0)) for row in rows if row.get("isActive", True)
                )
                self.answers += 1
                rows = fetch_json(
                    f"{self._base}/stages?withSummaries=true&quantiles=0,0.5,1", _TIMEOUT_S
                )
                self.stages = [
                    stage(row)
                    for row in rows
                    if row.get("status") in ("COMPLETE", "FAILED", "ACTIVE")
                ]
        now = time.monotonic()
        self._next = now + max(_LEAST_S, (now - began) / _SHARE)


#: Field of the sums over tasks → its name in a row of ``allexecutors``, and of ``stages``.
_OF_EXECUTOR: Final = {
    "tasks": "totalTasks",
    "failed_tasks": "failedTasks",
    "task_ms": "totalDuration",
    "gc_ms": "totalGCTime",
    "input_bytes": "totalInputBytes",
    "shuffle_read_bytes": "totalShuffleRead",
    "shuffle_write_bytes": "totalShuffleWrite",
}
_OF_STAGE: Final = {
    "failed_tasks": "numFailedTasks",
    "killed_tasks": "numKilledTasks",
    "run_ms": "executorRunTime",
    "gc_ms": "jvmGcTime",
    "deserialize_ms": "executorDeserializeTime",
    "result_serialize_ms": "resultSerializationTime",
    "fetch_wait_ms": "shuffleFetchWaitTime",
    "result_bytes": "resultSize",
    "input_bytes": "inputBytes",
    "input_records": "inputRecords",
    "output_bytes": "outputBytes",
    "output_records": "outputRecords",
    "shuffle_read_bytes": "shuffleReadBytes",
    "shuffle_read_records": "shuffleReadRecords",
    "shuffle_write_bytes": "shuffleWriteBytes",
    "shuffle_write_records": "shuffleWriteRecords",
    "memory_spilled_bytes": "memoryBytesSpilled",
    "disk_spilled_bytes": "diskBytesSpilled",
    "peak_execution_bytes": "peakExecutionMemory",
}


def executor(row: Mapping[str, Any]) -> ExecutorEntry:
    """Return a row of ``allexecutors``."""
    totals = TaskTotals(**{name: row.get(field, 0) for name, field in _OF_EXECUTOR.items()})
    host = str(row.get("hostPort", "")).rpartition(":")[0]
    entry = ExecutorEntry(str(row["id"]), host, int(row.get("totalCores", 0)), totals=totals)
    entry.reason = row.get("removeReason")
    merge_peaks(entry.peaks, row.get("peakMemoryMetrics"))
    if disk_used := row.get("diskUsed"):
        merge_peaks(entry.peaks, {"DiskStorage": disk_used})
    return entry


def stage(row: Mapping[str, Any]) -> StageEntry:
    """Return a row of ``stages``, with the spreads of its tasks where the answer has them."""
    totals = TaskTotals(**{name: row.get(field, 0) for name, field in _OF_STAGE.items()})
    totals.tasks = sum(
        int(row.get(f"num{kind}Tasks", 0)) for kind in ("Complete", "Failed", "Killed")
    )
    totals.task_ms = totals.run_ms + totals.deserialize_ms
    totals.cpu_ms = row.get("executorCpuTime", 0) // 1_000_000
    totals.shuffle_write_ms = row.get("shuffleWriteTime", 0) // 1_000_000
    entry = StageEntry(
        int(row["stageId"]), int(row.get("attemptId", 0)), str(row.get("name", ""))[:200]
    )
    entry.task_count, entry.totals, entry.failure = (
        int(row.get("numTasks", 0)),
        totals,
        row.get("failureReason"),
    )
    entry.submitted_ms, entry.completed_ms = (
        _ms(row.get("submissionTime")),
        _ms(row.get("completionTime")),
    )
    spreads = row.get("taskMetricsDistributions") or {}
    # Spark adds up the peaks of tasks here; the largest of a task is what memory it takes.
    totals.peak_execution_bytes = (
        _spread(spreads.get("peakExecutionMemory")).max or totals.peak_execution_bytes
    )
    entry.task_ms = _spread(spreads.get("duration") or spreads.get("executorRunTime"))
    shuffle = spreads.get("shuffleReadMetrics") or {}
    entry.shuffle_read_bytes, entry.shuffle_read_records = (
        _spread(shuffle.get("readBytes")),
        _spread(shuffle.get("readRecords")),
    )
    entry.input_bytes = _spread((spreads.get("inputMetrics") or {}).get("bytesRead"))
    return entry


def set_stages(metrics: RunMetrics, stages: list[StageEntry]) -> None:
    """Set the stages of a run, the sums over their tasks, and their failures."""
    metrics.stages, metrics.stage_count = stages, len(stages)
    metrics.stage_failures = {entry.failure[:500]: 1 for entry in stages if entry.failure}
    metrics.totals = TaskTotals()
    for name in TaskTotals.__struct_fields__:
        values = [getattr(entry.totals, name) for entry in stages]
        setattr(
            metrics.totals,
            name,
            max(values, default=0) if name == "peak_execution_bytes" else sum(values),
        )


def _spread(values: Any) -> Spread:
    """Return a spread from the quantiles 0, 0.5 and 1."""
    if not isinstance(values, list) or len(values) != 3:
        return Spread()
    least, median, largest = map(int, values)
    return Spread(least, median, largest)


def _ms(value: Any) -> int | None:
    """Return UTC milliseconds of a time as the answer has it: such a number, or
    ``2026-01-15T06:00:00.000GMT``.
    """
    if isinstance(value, int):
        return value
    with suppress(TypeError, ValueError):
        return int(
            datetime.strptime(value.replace("GMT", "+0000"), "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
            * 1000
        )
    return None


def listening(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens."""
    with suppress(psutil.Error, OSError):
        connections = psutil.Process(pid).net_connections("tcp")
        return {entry.laddr.port for entry in connections if entry.status == psutil.CONN_LISTEN}
    return set()
