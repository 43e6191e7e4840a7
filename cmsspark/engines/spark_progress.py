"""What Spark's status says to people: the progress of a job, the page of a local run,
and where tasks ran.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.text.progress_line import ProgressLine, is_quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two looks at Spark's status, and before the first: a short job is
#: never looked at.
_EVERY_S: Final = 1.0
#: Spark's locality levels of a task whose data is on its own node.
_NEAR: Final = ("PROCESS_LOCAL", "NODE_LOCAL")
_MOST_TASKS: Final = 100_000


@contextmanager
def spark_progress(session: SparkSession, label: str) -> Iterator[None]:
    """Show the tasks of the active stages while the block runs. Nothing with ``--quiet``."""
    if is_quiet():
        yield
        return
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(session, label, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join(_EVERY_S)


def _watch(session: SparkSession, label: str, stop: threading.Event) -> None:
    with ProgressLine(label, None, "tasks") as line:
        while not stop.wait(_EVERY_S):
            try:
                done, total = _tasks(session)
            except Exception:  # the session ended; the job itself says why
                return
            if total:
                line.total = total
                line.update(done)


def _tasks(session: SparkSession) -> tuple[int, int]:
    """Return the numbers of completed and of all tasks of the stages that run now."""
    tracker = session.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numCompletedTasks for info in infos if info), sum(
        info.numTasks for info in infos if info
    )


def log_page(session: SparkSession, log: Callable[[str], None]) -> None:
    """Log the address of Spark's page, where it runs on this host and has one."""
    context = session.sparkContext
    if context.master.startswith("local") and context.uiWebUrl:
        log(f"Spark's page while this runs: {context.uiWebUrl}")


def _count_localities(spark: SparkSession) -> dict[str, int]:
    """Return the number of tasks that read files, by Spark's locality level. Counts the
    jobs without a job group.
    """
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
        # Persisted rows in memory count as input, too. Only the locality of tasks that
        # read files matters here.
        if data.inputBytes() and not data.shuffleReadBytes():
            tasks = store.taskList(stage, data.attemptId(), _MOST_TASKS)
            levels.update(
                str(tasks.apply(number).taskLocality()) for number in range(tasks.size())
            )
    return dict(levels)


def summarize_locality(spark: SparkSession) -> str | None:
    """Return a line for the terminal. None if no task read files, and on one host,
    where all data is local.
    """
    if spark.sparkContext.master.startswith("local"):
        return None
    try:
        levels = _count_localities(spark)
    except (
        Exception
    ):  # Spark keeps the last stages only; a finished run does not fail for lack of this line
        return None
    total = sum(levels.values())
    if not total:
        return None
    near = sum(levels.get(level, 0) for level in _NEAR)
    return f"{near} of {total} tasks that read files ran on a host that stores them ({near / total:.0%})"
