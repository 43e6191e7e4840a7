"""The events of Spark's event log that are read, as structs; all other events and
fields are skipped undecoded.

The names are those of Spark's ``JsonProtocol``, 3.5 to 4.x. Fields that a version or
another program leaves out have a neutral value.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct, field

from cmsspark.store.run_history import TRACE, exception_line

#: Java's numbers have 64 bits, and dates have years of four digits: what is beyond is
#: damage, not a figure.
Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Ms = Annotated[int, msgspec.Meta(ge=-62_135_596_800_000, le=253_402_300_799_999)]


class EventName(Struct):
    event: str = field(name="Event")


class LogStart(Struct):
    version: str = field(name="Spark Version", default="")


class ApplicationStart(Struct):
    name: str = field(name="App Name", default="")
    id: str | None = field(name="App ID", default=None)
    at: Ms = field(name="Timestamp", default=0)


class Timed(Struct):
    """An event that has only a time that matters."""

    at: Ms = field(name="Timestamp", default=0)


class EnvironmentUpdate(Struct):
    spark: dict[str, str] = field(name="Spark Properties", default_factory=dict)
    system: dict[str, str] = field(name="System Properties", default_factory=dict)


class ExecutorInfo(Struct):
    host: str = field(name="Host", default="")
    cores: Int = field(name="Total Cores", default=0)


class ExecutorAdded(Struct):
    executor: str = field(name="Executor ID")
    at: Ms = field(name="Timestamp", default=0)
    info: ExecutorInfo = field(name="Executor Info", default_factory=ExecutorInfo)


class ExecutorRemoved(Struct):
    executor: str = field(name="Executor ID")
    at: Ms = field(name="Timestamp", default=0)
    reason: str = field(name="Removed Reason", default="")


class StorageLevel(Struct):
    disk: bool = field(name="Use Disk", default=False)
    memory: bool = field(name="Use Memory", default=False)


class Rdd(Struct):
    id: Int = field(name="RDD ID")
    name: str = field(name="Name", default="")
    callsite: str = field(name="Callsite", default="")
    parents: list[int] = field(name="Parent IDs", default_factory=list)
    level: StorageLevel = field(name="Storage Level", default_factory=StorageLevel)


class Accumulable(Struct):
    id: Int = field(name="ID")
    value: Any = field(name="Value", default=None)


class StageInfo(Struct):
    stage: Int = field(name="Stage ID")
    attempt: Int = field(name="Stage Attempt ID", default=0)
    name: str = field(name="Stage Name", default="")
    tasks: Int = field(name="Number of Tasks", default=0)
    rdds: list[Rdd] = field(name="RDD Info", default_factory=list)
    parents: list[int] = field(name="Parent IDs", default_factory=list)
    submitted: Ms | None = field(name="Submission Time", default=None)
    completed: Ms | None = field(name="Completion Time", default=None)
    failure: str | None = field(name="Failure Reason", default=None)
    accumulables: list[Accumulable] = field(name="Accumulables", default_factory=list)


class StageEvent(Struct):
    info: StageInfo = field(name="Stage Info")


class JobStart(Struct):
    job: Int = field(name="Job ID")
    stages: list[int] = field(name="Stage IDs", default_factory=list)
    properties: dict[str, Any] | None = field(name="Properties", default=None)


class JobResult(Struct):
    result: str = field(name="Result", default="")


class JobEnd(Struct):
    job: Int = field(name="Job ID")
    result: JobResult = field(name="Job Result", default_factory=JobResult)


class TaskInfo(Struct):
    id: Int = field(name="Task ID", default=0)
    index: Int = field(name="Index", default=0)
    launch: Ms = field(name="Launch Time", default=0)
    finish: Ms = field(name="Finish Time", default=0)
    executor: str = field(name="Executor ID", default="")
    host: str = field(name="Host", default="")
    failed: bool = field(name="Failed", default=False)
    killed: bool = field(name="Killed", default=False)
    speculative: bool = field(name="Speculative", default=False)


class ShuffleRead(Struct):
    wait: Int = field(name="Fetch Wait Time", default=0)
    remote: Int = field(name="Remote Bytes Read", default=0)
    local: Int = field(name="Local Bytes Read", default=0)
    records: Int = field(name="Total Records Read", default=0)


class ShuffleWrite(Struct):
    bytes: Int = field(name="Shuffle Bytes Written", default=0)
    ns: Int = field(name="Shuffle Write Time", default=0)
    records: Int = field(name="Shuffle Records Written", default=0)


class Input(Struct):
    bytes: Int = field(name="Bytes Read", default=0)
    records: Int = field(name="Records Read", default=0)


class Output(Struct):
    bytes: Int = field(name="Bytes Written", default=0)
    records: Int = field(name="Records Written", default=0)


class TaskMetrics(Struct):
    deserialize: Int = field(name="Executor Deserialize Time", default=0)
    run: Int = field(name="Executor Run Time", default=0)
    cpu_ns: Int = field(name="Executor CPU Time", default=0)
    result: Int = field(name="Result Size", default=0)
    gc: Int = field(name="JVM GC Time", default=0)
    serialize: Int = field(name="Result Serialization Time", default=0)
    memory_spilled: Int = field(name="Memory Bytes Spilled", default=0)
    disk_spilled: Int = field(name="Disk Bytes Spilled", default=0)
    peak: Int = field(name="Peak Execution Memory", default=0)
    shuffle_read: ShuffleRead | None = field(name="Shuffle Read Metrics", default=None)
    shuffle_write: ShuffleWrite | None = field(name="Shuffle Write Metrics", default=None)
    input: Input | None = field(name="Input Metrics", default=None)
    output: Output | None = field(name="Output Metrics", default=None)


class EndReason(Struct):
    reason: str = field(name="Reason", default="Success")
    class_name: str = field(name="Class Name", default="")
    description: str = field(name="Description", default="")
    loss: str = field(name="Loss Reason", default="")
    message: str = field(name="Message", default="")


class TaskEnd(Struct):
    stage: Int = field(name="Stage ID")
    attempt: Int = field(name="Stage Attempt ID", default=0)
    reason: EndReason = field(name="Task End Reason", default_factory=EndReason)
    info: TaskInfo = field(name="Task Info", default_factory=TaskInfo)
    metrics: TaskMetrics | None = field(name="Task Metrics", default=None)
    peaks: dict[str, Int] | None = field(name="Task Executor Metrics", default=None)


class StageExecutorMetrics(Struct):
    executor: str = field(name="Executor ID")
    stage: Int = field(name="Stage ID")
    attempt: Int = field(name="Stage Attempt ID", default=0)
    peaks: dict[str, Int] = field(name="Executor Metrics", default_factory=dict)


class ExecutorUpdate(Struct):
    peaks: dict[str, Int] = field(name="Executor Metrics", default_factory=dict)


class MetricsUpdate(Struct):
    executor: str = field(name="Executor ID")
    updates: list[ExecutorUpdate] = field(name="Executor Metrics Updated", default_factory=list)


class PlanMetric(Struct):
    name: str = ""
    id: Int = field(name="accumulatorId", default=-1)


class PlanNode(Struct):
    name: str = field(name="nodeName", default="")
    text: str = field(name="simpleString", default="")
    children: list[PlanNode] = []
    metrics: list[PlanMetric] = []
    #: Of scans: the filters, the schema and the place, not shortened.
    metadata: dict[str, Any] = {}


class SqlStart(Struct):
    execution: Int = field(name="executionId")
    description: str = ""
    #: The calls that started it; the description may be the program's own words.
    details: str = ""
    plan: PlanNode = field(name="sparkPlanInfo", default_factory=PlanNode)
    at: Ms = field(name="time", default=0)


class SqlUpdate(Struct):
    execution: Int = field(name="executionId")
    plan: PlanNode = field(name="sparkPlanInfo", default_factory=PlanNode)


class SqlEnd(Struct):
    execution: Int = field(name="executionId")
    at: Ms = field(name="time", default=0)
    error: str | None = field(name="errorMessage", default=None)


class DriverUpdates(Struct):
    execution: Int = field(name="executionId")
    updates: list[tuple[int, Any]] = field(name="accumUpdates", default_factory=list)


NAME_DECODER: Final = msgspec.json.Decoder(EventName)


def decode_leniently(kind: type[Struct], line: bytes) -> Any:
    """Return an event in which another program wrote null for what is missing, or
    ``1.5e9`` for a whole number.

    Raises msgspec.MsgspecError where it is no such event.
    """
    return msgspec.convert(_without_nulls(msgspec.json.decode(line)), kind, strict=False)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


_LONGEST_REASON: Final = 300
_LONGEST_TEXT: Final = 20_000


def reason_text(reason: EndReason) -> str:
    """Return why a task ended, as one line of at most 300 characters."""
    line = exception_line(whole_text(reason))
    # The class is that of PySpark's wrapper where the line is of Python.
    name = "" if TRACE in reason.description else reason.class_name
    return " ".join(f"{reason.reason}: {name} {line}".split())[:_LONGEST_REASON]


def whole_text(reason: EndReason) -> str:
    """Return all that Spark says of the end of a task, at most its last 20,000 characters."""
    return (reason.description or reason.loss or reason.message).strip()[-_LONGEST_TEXT:]


def complete_flags(event: TaskEnd) -> None:
    """Set whether a task failed or was killed by its reason where neither flag does.

    A task whose output was lost with its executor ends again, ``Resubmitted``, with the
    flags of its success.
    """
    info, reason = event.info, event.reason.reason
    if not (info.failed or info.killed):
        info.killed = reason == "TaskKilled"
        info.failed = reason not in ("", "Success", "TaskKilled")


def without_negatives(metrics: TaskMetrics) -> None:
    """Set figures below 0 to 0: clocks that are set back make them, and sums of them
    would be wrong.
    """
    parts = (metrics, metrics.shuffle_read, metrics.shuffle_write, metrics.input, metrics.output)
    for part in parts:
        for name in part.__struct_fields__ if part is not None else ():
            value = getattr(part, name)
            if isinstance(value, int) and value < 0:
                setattr(part, name, 0)
