"""Progress of a job in Spark, as one line with that of all other work, and the address of a local run's page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cmsspark.base.text.progress_line import ProgressLine, is_quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two looks at Spark's status, and before the first: a short job is never looked at.
_EVERY_S: Final = 1.0


@contextmanager
def spark_progress(session: SparkSession, what: str) -> Iterator[None]:
    """Show the tasks of the active stages while the block runs. Nothing with ``--quiet``."""
    if is_quiet():
        yield
        return
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(session, what, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join(_EVERY_S)


def _watch(session: SparkSession, what: str, stop: threading.Event) -> None:
    with ProgressLine(what, None, "tasks") as line:
        while not stop.wait(_EVERY_S):
            try:
                done, total = _tasks(session)
            except Exception:  # the session ended; the job itself says why
                return
            if total:
                line.total = total
                line.update(done)


def _tasks(session: SparkSession) -> tuple[int, int]:
    """Completed and all tasks of the stages that run now."""
    tracker = session.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numCompletedTasks for info in infos if info), sum(info.numTasks for info in infos if info)


def log_page(session: SparkSession, log: Callable[[str], None]) -> None:
    """Log the address of Spark's page, where it runs on this host and has one."""
    context = session.sparkContext
    if context.master.startswith("local") and context.uiWebUrl:
        log(f"Spark's page while this runs: {context.uiWebUrl}")
