"""How many tasks ran on the hosts of their data; printed after a run on a cluster, as a wrong host name shows there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark's locality levels of a task whose data is on its own node.
NEAR: Final = ("PROCESS_LOCAL", "NODE_LOCAL")
_MOST_TASKS: Final = 100_000


def of_readers(spark: SparkSession) -> dict[str, int]:
    """Return the number of tasks that read files, by Spark's locality level. Counts the jobs without a job group."""
    context = spark.sparkContext
    store: Any = context._jsc.sc().statusStore()
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
    levels: Counter[str] = Counter()
    for stage in sorted({stage for job in jobs if job for stage in job.stageIds}):
        info = tracker.getStageInfo(stage)
        if info is None or not info.numCompletedTasks:
            continue
        data = store.lastStageAttempt(stage)
        # Persisted rows in memory count as input, too. Only the locality of tasks that read files matters here.
        if data.inputBytes() and not data.shuffleReadBytes():
            tasks = store.taskList(stage, data.attemptId(), _MOST_TASKS)
            levels.update(str(tasks.apply(number).taskLocality()) for number in range(tasks.size()))
    return dict(levels)


def summary(spark: SparkSession) -> str | None:
    """Return a line for the terminal. None if no task read files, and on one host, where all data is local."""
    if spark.sparkContext.master.startswith("local"):
        return None
    try:
        levels = of_readers(spark)
    except Exception:  # Spark keeps the last stages only; a finished run does not fail for lack of this line
        return None
    total = sum(levels.values())
    if not total:
        return None
    near = sum(levels.get(level, 0) for level in NEAR)
    return f"{near} of {total} tasks that read files ran on a host that stores them ({near / total:.0%})"
