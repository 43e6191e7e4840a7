"""Event logs as Spark writes them, made of values that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MB = 1_000_000
BEGAN = 1_768_435_200_000


def event(name: str, **fields: Any) -> bytes:
    """A line; underscores of names are blanks."""
    values = {key.replace("_", " "): value for key, value in fields.items()}
    return json.dumps({"Event": f"SparkListener{name}", **values}, separators=(",", ":")).encode()


def begin(
    *, spark: str = "4.1.1", cores: int = 4, measured: str | None = None, **options: str
) -> Iterator[bytes]:
    """The begin of an application; ``options`` have underscores for dots."""
    yield event("LogStart", Spark_Version=spark)
    properties = {
        "spark.master": "yarn",
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    system = {"cmsspark-run": measured} if measured else {}
    yield event("EnvironmentUpdate", Spark_Properties=properties, System_Properties=system)
    yield event("ApplicationStart", App_Name="made", App_ID="application_1_0001", Timestamp=BEGAN)
    info = {"Host": "node1", "Total Cores": cores}
    yield event("ExecutorAdded", Timestamp=BEGAN, Executor_ID="1", Executor_Info=info)


def stage(number: int, tasks: int, name: str = "save at job.py:1", **info: Any) -> dict[str, Any]:
    """What Spark says of a stage."""
    fields = {
        "Stage ID": number,
        "Stage Attempt ID": 0,
        "Stage Name": name,
        "Number of Tasks": tasks,
    }
    return {**fields, **{key.replace("_", " "): value for key, value in info.items()}}


def task(
    number: int,
    *,
    run: int = 1000,
    shuffle: int = 0,
    spilled: int = 0,
    gc: int = 0,
    failed: str = "",
    of: int = 0,
) -> bytes:
    """The end of a task of the stage ``of``: ``run`` and ``gc`` milliseconds,
    ``shuffle`` and ``spilled`` bytes.
    """
    metrics = {
        "Executor Run Time": run,
        "Executor CPU Time": run * 500_000,
        "JVM GC Time": gc,
        "Result Size": 100,
        "Memory Bytes Spilled": 3 * spilled,
        "Disk Bytes Spilled": spilled,
        "Shuffle Read Metrics": {
            "Remote Bytes Read": shuffle // 4,
            "Local Bytes Read": shuffle - shuffle // 4,
        },
        "Shuffle Write Metrics": {"Shuffle Bytes Written": 7, "Shuffle Write Time": 2_000_000},
        "Input Metrics": {"Bytes Read": 11, "Records Read": 1},
    }
    launched = BEGAN + 1000
    info = {
        "Task ID": number,
        "Index": number,
        "Attempt": 0,
        "Launch Time": launched,
        "Finish Time": launched + run,
        "Executor ID": "1",
        "Host": "node1",
        "Failed": bool(failed),
        "Killed": False,
        "Accumulables": [
            {"ID": 1, "Name": "internal.metrics.executorRunTime", "Update": run, "Value": run}
        ],
    }
    reason = (
        {"Reason": "ExceptionFailure", "Class Name": "E", "Description": failed}
        if failed
        else {"Reason": "Success"}
    )
    return event(
        "TaskEnd",
        Stage_ID=of,
        Stage_Attempt_ID=0,
        Task_Type="ResultTask",
        Task_End_Reason=reason,
        Task_Info=info,
        Task_Executor_Metrics={"JVMHeapMemory": 100 * MB + number},
        Task_Metrics=None if failed else metrics,
    )


def application(tasks: int, **options: str) -> Iterator[bytes]:
    """A whole application with one stage of ``tasks`` tasks, of which the last one
    reads 40 MB, the others 1 MB.
    """
    yield from begin(**options)
    yield event("JobStart", Job_ID=0, Stage_IDs=[0], Properties={})
    yield event("StageSubmitted", Stage_Info=stage(0, tasks, Submission_Time=BEGAN + 900))
    for number in range(tasks):
        yield task(number, shuffle=40 * MB if number == tasks - 1 else MB)
    done = stage(0, tasks, Submission_Time=BEGAN + 900, Completion_Time=BEGAN + 3000)
    peaks = {"JVMHeapMemory": 500 * MB, "OnHeapUnifiedMemory": 90 * MB}
    yield event(
        "StageExecutorMetrics",
        Executor_ID="1",
        Stage_ID=0,
        Stage_Attempt_ID=0,
        Executor_Metrics=peaks,
    )
    yield event("StageCompleted", Stage_Info=done)
    yield event(
        "JobEnd", Job_ID=0, Completion_Time=BEGAN + 3000, Job_Result={"Result": "JobSucceeded"}
    )
    yield event("ApplicationEnd", Timestamp=BEGAN + 4000)
