"""How near to their data a job's tasks ran: told after a run on a cluster, so that a wrong host name is noticed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark's words for a task that found its data on its own node.
NEAR: Final = ("PROCESS_LOCAL", "NODE_LOCAL")
_MOST_TASKS: Final = 100_000


def of_readers(spark: SparkSession) -> dict[str, int]:
    """Tasks of the stages that read files, by Spark's word for how near their data were; of jobs without a group."""
    context = spark.sparkContext
    store: Any = context._jsc.sc().statusStore()
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
    found: Counter[str] = Counter()
    for stage in sorted({stage for job in jobs if job for stage in job.stageIds}):
        info = tracker.getStageInfo(stage)
        if info is None or not info.numCompletedTasks:
            continue
        data = store.lastStageAttempt(stage)
        # Rows that were kept in memory count as input, too: only tasks that read a file say how near it is.
        if data.inputBytes() and not data.shuffleReadBytes():
            tasks = store.taskList(stage, data.attemptId(), _MOST_TASKS)
            found.update(str(tasks.apply(number).taskLocality()) for number in range(tasks.size()))
    return dict(found)


def told(spark: SparkSession) -> str | None:
    """A line for people; None where no task read files, and on one host, where all is near."""
    if spark.sparkContext.master.startswith("local"):
        return None
    try:
        found = of_readers(spark)
    except Exception:  # Spark keeps the last stages only; what is done does not fail for what is told of it
        return None
    total = sum(found.values())
    if not total:
        return None
    near = sum(found.get(word, 0) for word in NEAR)
    return f"{near} of {total} tasks that read files ran where these lie ({near / total:.0%})"
