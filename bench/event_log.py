"""What Spark's event log says of an application: jobs, stages, tasks, bytes moved, when
it was at work.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Application:
    """Counts and sums of an application. Stages that were skipped do not count; times are seconds."""

    jobs: int = 0
    #: Tasks of each stage, in the order of their ends.
    stage_tasks: list[int] = field(default_factory=list)
    tasks: int = 0
    #: Tasks of the first stage by Spark's level of locality.
    first_localities: Counter[str] = field(default_factory=Counter)
    failed_tasks: int = 0
    shuffle_bytes: int = 0
    spilled_bytes: int = 0
    #: What Spark's JVM read of files.
    input_bytes: int = 0
    #: From its start to its end, and how much of that at least one task was at work.
    seconds: float = 0.0
    task_seconds: float = 0.0
    #: From RUNNING (YARN has accepted and started it) to its end, and how much of that
    #: was the driver's own work: no task was at work, and no job waited for the first
    #: executor.
    running_s: float = 0.0
    driver_s: float = 0.0
    #: Of the longest task, and of all of them.
    longest_s: float = 0.0
    run_s: float = 0.0
    #: From the application's start to the first task.
    first_task_s: float = 0.0
    heap_peak_bytes: int = 0
    python_peak_bytes: int = 0

    @property
    def stages(self) -> int:
        """How many stages have ended."""
        return len(self.stage_tasks)


def read(lines: Iterable[str]) -> Application:
    """The application that an event log describes."""
    found = Application()
    times: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for line in lines:
        event = json.loads(line)
        kind = event["Event"].removeprefix("SparkListener")
        if kind == "BlockManagerAdded" and event["Block Manager ID"]["Executor ID"] != "driver":
            continue
        if (at := event.get("Timestamp", event.get("Submission Time"))) is not None:
            times.setdefault(kind, at)
        if kind == "JobStart":
            found.jobs += 1
        elif kind == "StageCompleted":
            found.stage_tasks.append(event["Stage Info"]["Number of Tasks"])
        elif kind == "TaskEnd":
            spans.append(_task(event, found))
    began = times.get("ApplicationStart", 0)
    ended = times.get("ApplicationEnd", max((last for _, last in spans), default=began))
    # The driver's block manager is the first that Spark makes once YARN says RUNNING.
    running = times.get("BlockManagerAdded", began)
    waiting = (
        [(times["JobStart"], times["ExecutorAdded"])]
        if {"JobStart", "ExecutorAdded"} <= times.keys()
        else []
    )
    if spans:
        found.first_task_s = (min(first for first, _ in spans) - began) / 1000
        found.task_seconds = _covered(spans) / 1000
    found.seconds, found.running_s = (ended - began) / 1000, (ended - running) / 1000
    found.driver_s = (ended - running - _covered([*spans, *waiting])) / 1000
    return found


def _task(event: dict[str, object], found: Application) -> tuple[int, int]:
    info, metrics = event["Task Info"], event.get("Task Metrics") or {}
    peaks = event.get("Task Executor Metrics") or {}
    assert isinstance(info, dict) and isinstance(metrics, dict) and isinstance(peaks, dict)
    found.tasks += 1
    if not found.stage_tasks:
        found.first_localities[str(info["Locality"])] += 1
    found.failed_tasks += bool(info["Failed"])
    found.shuffle_bytes += int(
        (metrics.get("Shuffle Write Metrics") or {}).get("Shuffle Bytes Written", 0)
    )
    found.spilled_bytes += int(metrics.get("Disk Bytes Spilled", 0))
    found.input_bytes += int((metrics.get("Input Metrics") or {}).get("Bytes Read", 0))
    first, last = int(info["Launch Time"]), int(info["Finish Time"])
    found.longest_s = max(found.longest_s, (last - first) / 1000)
    found.run_s += (last - first) / 1000
    found.heap_peak_bytes = max(found.heap_peak_bytes, int(peaks.get("JVMHeapMemory", 0)))
    found.python_peak_bytes = max(
        found.python_peak_bytes, int(peaks.get("ProcessTreePythonRSSMemory", 0))
    )
    return first, last


def _covered(spans: list[tuple[int, int]]) -> int:
    """Milliseconds in which at least one span lies."""
    total = until = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, until))
        until = max(until, last)
    return total
