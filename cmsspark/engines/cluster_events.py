"""What befell a run on a cluster: lost executors, stages and tasks that ran again,
speculative copies of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Reasons of Spark for executors that it lets go: they are no loss.
_LET_GO: Final = re.compile(
    r"killed by driver|idle|explicit termination request|decommission|exited with code 0\b",
    re.IGNORECASE,
)
#: Why Spark ends a task of which a copy was faster.
_OTHER_ATTEMPT: Final = "another attempt succeeded"
#: What a task says, far below, of a disk without room.
_FULL: Final = re.compile(r"[\w.]*: No space left on device")
_REASON_CHARACTERS: Final = 300


def cluster_events(spark: SparkSession) -> list[dict[str, Any]]:
    """Return what befell executors and tasks until now, from Spark's own status; empty
    in a local session.

    Each entry has ``event``: ``executor_lost`` (``executor``, ``host``, and ``reason``,
    such as a preemption or a lost node), ``stage_repeated`` (``stage``, ``attempts``,
    ``reason`` of a failure), ``tasks_repeated`` (``stage``, ``tasks`` that failed,
    ``reason`` of one) or ``speculative_copies`` (``stage``, ``tasks`` of which a copy
    was faster).
    """
    if spark.sparkContext.master.startswith("local"):
        return []
    try:
        store: Any = spark.sparkContext._jsc.sc().statusStore()
        return [*_lost(store), *_repeated(store, spark.sparkContext._jvm)]
    except Exception:  # as for locality: a finished run does not fail for lack of its status
        return []


def _lost(store: Any) -> Iterator[dict[str, Any]]:
    for entry in _elements(store.executorList(False)):
        reason = entry.removeReason()
        if entry.isActive() or not reason.isDefined() or _LET_GO.search(reason.get()):
            continue
        yield {
            "event": "executor_lost",
            "executor": entry.id(),
            "host": entry.hostPort().rpartition(":")[0],
            "reason": _line(reason.get()),
        }


def _repeated(store: Any, jvm: Any) -> Iterator[dict[str, Any]]:
    attempts: dict[int, list[Any]] = {}
    for stage in _elements(_stages(store)):
        attempts.setdefault(stage.stageId(), []).append(stage)
    for number, stages in sorted(attempts.items()):
        if len(stages) > 1:
            reasons = [
                stage.failureReason().get()
                for stage in stages
                if stage.failureReason().isDefined()
            ]
            reason = {"reason": _line(reasons[0])} if reasons else {}
            yield {"event": "stage_repeated", "stage": number, "attempts": len(stages), **reason}
        if failed := sum(stage.numFailedTasks() for stage in stages):
            reasons = [text for stage in stages for text in _failures(store, stage, jvm)]
            reason = {"reason": reasons[0]} if reasons else {}
            yield {"event": "tasks_repeated", "stage": number, "tasks": failed, **reason}
        if copies := sum(_faster_copies(stage) for stage in stages):
            yield {"event": "speculative_copies", "stage": number, "tasks": copies}


def _failures(store: Any, stage: Any, jvm: Any) -> Iterator[str]:
    """Yield why a task of a stage failed, if one did."""
    status = jvm.org.apache.spark.status.api.v1
    tasks = store.taskList(
        stage.stageId(), stage.attemptId(), 0, 1, status.TaskSorting.ID, [status.TaskStatus.FAILED]
    )
    for task in _elements(tasks):
        if task.errorMessage().isDefined():
            text = task.errorMessage().get()
            full = _FULL.search(text)
            yield full[0] if full else _line(text)


def _faster_copies(stage: Any) -> int:
    """Return the tasks of a stage that ended because another attempt was faster."""
    return sum(
        int(entry._2())
        for entry in _elements(stage.killedTasksSummary().toSeq())
        if _OTHER_ATTEMPT in entry._1()
    )


def _stages(store: Any) -> Any:
    """Return all attempts of all stages. Py4J knows no default arguments of Scala."""
    quantiles, statuses = (getattr(store, f"stageList$default${number}")() for number in (4, 5))
    return store.stageList(None, False, False, quantiles, statuses)


def _elements(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    return (sequence.apply(number) for number in range(sequence.size()))


def _line(text: str) -> str:
    return " ".join(text.split())[:_REASON_CHARACTERS]
