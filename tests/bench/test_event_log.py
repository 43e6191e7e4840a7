"""The event log of Spark: what is counted of it."""

from __future__ import annotations

import json
from typing import Any

from bench.event_log import read


def task(first: int, last: int, written: int, *, failed: bool = False) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Task Info": {"Launch Time": first, "Finish Time": last, "Failed": failed},
        "Task Metrics": {"Shuffle Write Metrics": {"Shuffle Bytes Written": written}, "Disk Bytes Spilled": 3},
        "Task Executor Metrics": {"JVMHeapMemory": last, "ProcessTreePythonRSSMemory": 2 * last},
    }


def test_jobs_stages_tasks_bytes_and_the_drivers_own_time() -> None:
    events = [
        {"Event": "SparkListenerApplicationStart", "Timestamp": 1_000},
        {"Event": "SparkListenerJobStart"},
        task(3_000, 5_000, 10),
        task(4_000, 6_000, 20, failed=True),
        {"Event": "SparkListenerStageCompleted"},
        task(9_000, 9_500, 0),
        {"Event": "SparkListenerApplicationEnd", "Timestamp": 12_000},
    ]
    found = read(map(json.dumps, events))
    assert (found.jobs, found.stages, found.tasks, found.failed_tasks) == (1, 1, 3, 1)
    assert (found.shuffle_bytes, found.spilled_bytes) == (30, 9)
    assert (found.seconds, found.first_task_s, found.task_seconds) == (11.0, 2.0, 3.5)
    # 2 s before the first task, 3.5 s of tasks.
    assert found.driver_s == 5.5
    assert (found.longest_s, found.run_s) == (2.0, 4.5)
    assert (found.heap_peak_bytes, found.python_peak_bytes) == (9_500, 19_000)


def test_an_application_that_ran_nothing_has_no_tasks() -> None:
    assert read(['{"Event": "SparkListenerApplicationStart", "Timestamp": 5}']).seconds == 0.0
