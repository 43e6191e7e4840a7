"""The event log of Spark: what is counted of it."""

from __future__ import annotations

import json
from typing import Any

from bench.event_log import read


def task(first: int, last: int, written: int, *, failed: bool = False) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Task Info": {
            "Launch Time": first,
            "Finish Time": last,
            "Failed": failed,
            "Locality": "ANY",
        },
        "Task Metrics": {
            "Shuffle Write Metrics": {"Shuffle Bytes Written": written},
            "Disk Bytes Spilled": 3,
        }
        | {"Input Metrics": {"Bytes Read": 7}},
        "Task Executor Metrics": {"JVMHeapMemory": last, "ProcessTreePythonRSSMemory": 2 * last},
    }


def block_manager(executor: str, at: int) -> dict[str, Any]:
    return {
        "Event": "SparkListenerBlockManagerAdded",
        "Block Manager ID": {"Executor ID": executor},
        "Timestamp": at,
    }


def test_jobs_stages_tasks_bytes_and_the_drivers_own_time() -> None:
    events = [
        block_manager("driver", 1_200),
        # Spark writes its start after what came before its listeners.
        {"Event": "SparkListenerApplicationStart", "Timestamp": 1_000},
        {"Event": "SparkListenerJobStart", "Submission Time": 1_700},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 2_500},
        block_manager("1", 2_600),
        task(3_000, 5_000, 10),
        task(4_000, 6_000, 20, failed=True),
        {"Event": "SparkListenerStageCompleted", "Stage Info": {"Number of Tasks": 2}},
        {"Event": "SparkListenerJobStart", "Submission Time": 8_000},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 8_500},
        task(9_000, 9_500, 0),
        {"Event": "SparkListenerApplicationEnd", "Timestamp": 12_000},
    ]
    found = read(map(json.dumps, events))
    assert (found.jobs, found.stages, found.tasks, found.failed_tasks) == (2, 1, 3, 1)
    assert found.stage_tasks == [2]
    assert (found.shuffle_bytes, found.spilled_bytes, found.input_bytes) == (30, 9, 21)
    assert (found.seconds, found.first_task_s, found.task_seconds) == (11.0, 2.0, 3.5)
    # 3.5 s of tasks, 0.8 s in which the first job waits for the first executor.
    assert (found.running_s, found.driver_s) == (10.8, 6.5)
    assert (found.longest_s, found.run_s) == (2.0, 4.5)
    assert (found.heap_peak_bytes, found.python_peak_bytes) == (9_500, 19_000)


def test_a_job_that_finds_an_executor_does_not_wait() -> None:
    events = [
        block_manager("driver", 1_000),
        {"Event": "SparkListenerApplicationStart", "Timestamp": 1_000},
        {"Event": "SparkListenerExecutorAdded", "Timestamp": 2_500},
        {"Event": "SparkListenerJobStart", "Submission Time": 3_000},
        task(4_000, 5_000, 0),
        {"Event": "SparkListenerApplicationEnd", "Timestamp": 6_000},
    ]
    assert read(map(json.dumps, events)).driver_s == 4.0


def test_an_application_that_ran_nothing_has_no_tasks() -> None:
    assert read(['{"Event": "SparkListenerApplicationStart", "Timestamp": 5}']).seconds == 0.0
