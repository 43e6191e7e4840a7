"""What ended tasks, executors and queries: the cause by name where Spark's text has
one, else the exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.findings import causes, named
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.run_metrics import ExecutorEntry, Finding, RunMetrics

#: The option that limits the addresses of Python workers, of an executor together.
WORKER_LIMIT: Final = "spark.executor.pyspark.memory"
OUT_OF_MEMORY: Final = re.compile(
    r"Java heap space|GC overhead limit exceeded|OutOfMemoryError"
    r"|Not enough memory to build and broadcast the table"
)
#: Ends of executors that somebody meant.
_MEANT: Final = re.compile(
    r"killed by driver|(?:requested|idle|scale[ -]?down|decommission|deallocat)|explicit termination"
    r"|driver (?:is )?(?:stop|shut)|[Ww]orker shutting down|was preempted|Command exited with code 0\b",
    re.IGNORECASE,
)
#: Ends of tasks that are no failure of theirs, and those that only repeat what happened
#: to an executor.
_NO_FAILURES: Final = (
    "Resubmitted",
    "TaskCommitDenied",
    "TaskKilled",
    "ExecutorLostFailure",
    "FetchFailed",
)
_OF_LOST: Final = ("ExecutorLostFailure", "Resubmitted", "FetchFailed")
_SHOWN: Final = 200
_ENDING_MS: Final = 10_000


def failure_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield each cause once, and the exception of a task that has none of these."""
    severity = "error" if metrics.failed_jobs or metrics.state == "FAILED" else "warning"
    limit = metrics.options.get(WORKER_LIMIT)
    codes = set()
    for where, text in _texts(metrics):
        code, match = next(
            ((code, match) for code, cause in causes().items() if (match := cause.search(text))),
            ("", None),
        )
        if match is None or code in codes:
            continue
        codes.add(code)
        if code == "container_killed":
            exit_code = match["code"] or match["short"]
            title = f"killed{f' (exit {exit_code})' if exit_code else ''}: {' '.join(text.split())[:_SHOWN]}"
            yield named(code, title, where, "error")
            continue
        # The cause stands at the end of long texts.
        title = " ".join(text[max(0, match.start() - _SHOWN // 2) :].split())[:_SHOWN]
        key = f"{code}.option" if code == "python_memory_limit" and limit is not None else code
        yield named(key, title, where, severity, limit=limit)
    if not codes & {"container_killed", "heartbeat"}:
        yield from _lost(metrics, severity)
    # The exception of tasks, the most frequent one, that no cause above explains.
    exceptions = {
        line: count
        for line, count in metrics.failures.items()
        if not line.startswith(_NO_FAILURES)
        and not OUT_OF_MEMORY.search(line)
        and not any(cause.search(line) for cause in causes().values())
    }
    if exceptions:
        line = max(exceptions, key=lambda text: exceptions[text])
        text = line.partition(": ")[2] or line
        title = f"{text[:_SHOWN]} ({pluralize(exceptions[line], 'task')} failed)"
        yield named("failed_task", title, "tasks", severity)


def _texts(metrics: RunMetrics) -> Iterator[tuple[str, str]]:
    """Yield (where, text) of all that ended, what is nearest to the cause first."""
    for entry in metrics.executors:
        if entry.reason and not _is_meant(metrics, entry):
            yield f"executor {entry.executor} on {entry.host}", entry.reason
    for line in metrics.failures:
        yield "tasks", line
    for line in metrics.stage_failures:
        yield "stages", line
    for query in metrics.queries:
        if query.error:
            yield f"SQL {query.execution}, {query.description}", query.error
    for line in metrics.log_lines:
        if not _MEANT.search(line):
            yield "the driver's log", line


def _lost(metrics: RunMetrics, severity: str) -> Iterator[Finding]:
    # One that had nothing to do and nothing to lose costs nothing.
    if not _lost_work(metrics):
        return
    for entry in metrics.executors:
        if entry.removed_ms is None or not entry.reason or _is_meant(metrics, entry):
            continue
        if any(cause.search(entry.reason) for cause in causes().values()):
            continue
        title = f"lost: {' '.join(entry.reason.split())[:_SHOWN]}"
        yield named("lost_executor", title, f"executor {entry.executor} on {entry.host}", severity)
        return


def _lost_work(metrics: RunMetrics) -> bool:
    """Return whether an executor ended with tasks or data."""
    return any(line.startswith(_OF_LOST) for line in metrics.failures)


def _is_meant(metrics: RunMetrics, entry: ExecutorEntry) -> bool:
    """Return whether somebody meant the end of an executor, or it went with its application:
    in the last seconds, of which the driver needs some to end, and without work.
    """
    if _MEANT.search(entry.reason or ""):
        return True
    if entry.removed_ms is None or metrics.ended_ms is None:
        return False
    before_end = metrics.ended_ms - entry.removed_ms
    return before_end <= (0 if _lost_work(metrics) else _ENDING_MS)
