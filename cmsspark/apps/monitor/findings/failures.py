"""What ended tasks, executors and queries: the cause by name where Spark's text has
one, else the exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cmsspark.store.run_metrics import Finding, RunMetrics


class Cause(NamedTuple):
    """A cause: its code, the text of Spark by which it is known, and what to change."""

    code: str
    text: re.Pattern[str]
    cure: str


OUT_OF_MEMORY: Final = re.compile(r"Java heap space|GC overhead limit exceeded|OutOfMemoryError")
_KILLED: Final = re.compile(
    r"[Ee]xit (?:code|status):? (?:is |from container \S+ is ?:? ?)?(?P<code>137|143)(?!\d)"
    r"|(?:exited with code|code) (?P<short>137|143)(?!\d)"
    r"|beyond (?:the )?'?(?:physical|virtual)'? memory|[Cc]ontainer killed|OOMKilled"
)
#: The first that fits is the cause.
CAUSES: Final = (
    Cause(
        "heartbeat",
        re.compile(r"[Hh]eartbeat timed out"),
        "a full heap, a long garbage collection or a host without memory stops heartbeats: see its peaks, and "
        "cmsspark lab advise; spark.network.timeout only waits longer",
    ),
    Cause(
        "container_killed",
        _KILLED,
        "spark.executor.memoryOverhead × 1.5: its last peak is missing, so it needed at least what was seen",
    ),
    Cause(
        "no_space",
        re.compile(r"No space left on device|Disk quota exceeded"),
        "room in spark.local.dir (LOCAL_DIRS of YARN), or less to spill and shuffle: more memory, fewer columns",
    ),
    Cause(
        "max_result_size",
        re.compile(
            r"bigger than (?:local )?spark\.driver\.maxResultSize|bigger than local maxResultSize"
        ),
        "aggregate or limit() before collect() and toPandas(), or write the rows; else a larger "
        "spark.driver.maxResultSize with as much more memory of the driver",
    ),
    Cause(
        "python_worker_killed",
        re.compile(
            r"Python worker exited unexpectedly|Python worker .{0,40}crashed|EOFException.{0,80}PythonRunner"
        ),
        "the system killed it for its memory (spark.executor.memoryOverhead, smaller batches: "
        "spark.sql.execution.arrow.maxRecordsPerBatch), or a library crashed: "
        "spark.python.worker.faulthandler.enabled=true shows where",
    ),
    Cause(
        "python_memory_limit",
        re.compile(
            r"failed to map segment|(?<![\w.])MemoryError\b|Cannot allocate memory"
            r"|Unable to allocate .{1,40} for an array|ArrowMemoryError|std::bad_alloc"
            r"|can't start new thread|OpenBLAS blas_thread_init"
        ),
        "{limit}",
    ),
    Cause(
        "broadcast_timeout",
        re.compile(r"Could not execute broadcast in"),
        "spark.sql.autoBroadcastJoinThreshold=-1 where the table is large, filter it before, or a larger "
        "spark.sql.broadcastTimeout",
    ),
    Cause(
        "fetch_failure",
        re.compile(r"^FetchFailed\b|FetchFailedException|Missing an output location for shuffle"),
        "an executor or its disk was lost with its shuffle files: see why; the external shuffle service keeps them",
    ),
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


def failure_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield each cause once, and the exception of a task that has none of these."""
    texts = list(_texts(metrics))
    severity = "error" if metrics.failed_jobs or metrics.state == "FAILED" else "warning"
    codes = set()
    for where, text in texts:
        cause = next((cause for cause in CAUSES if cause.text.search(text)), None)
        if cause is not None and cause.code not in codes:
            codes.add(cause.code)
            is_killed = cause.code == "container_killed"
            yield Finding(
                cause.code,
                _title(cause, text),
                where,
                _worker_limit_cure(metrics) if cause.cure == "{limit}" else cause.cure,
                "error" if is_killed else severity,
            )
    if not codes & {"container_killed", "heartbeat"}:
        yield from _lost(metrics, severity)
    # The exception of tasks, the most frequent one, that no cause above explains.
    exceptions = {
        line: count
        for line, count in metrics.failures.items()
        if not line.startswith(_NO_FAILURES)
        and not OUT_OF_MEMORY.search(line)
        and not any(cause.text.search(line) for cause in CAUSES)
    }
    if exceptions:
        line = max(exceptions, key=lambda text: exceptions[text])
        count = exceptions[line]
        text = line.partition(": ")[2] or line
        title = f"{text[:_SHOWN]} ({count} task{'s' if count > 1 else ''} failed)"
        cure = "the whole trace: cmsspark show RUN --trace"
        yield Finding("failed_task", title, "tasks", cure, severity)


#: The option that limits the addresses of Python workers, of an executor together.
WORKER_LIMIT: Final = "spark.executor.pyspark.memory"


def _worker_limit_cure(metrics: RunMetrics) -> str:
    """Return the cure for a Python worker that got no memory from the system."""
    if (limit := metrics.options.get(WORKER_LIMIT)) is not None:
        return (
            f"{WORKER_LIMIT}={limit} limits the addresses of the workers, and libraries take far more of them than "
            "memory: cmsspark lab advise has a value, or leave it out and let spark.executor.memoryOverhead be larger"
        )
    return (
        "a limit of this host (ulimit -v, a control group) or a full host stopped a Python worker: raise it, or "
        "run fewer tasks at once (spark.executor.cores)"
    )


def _title(cause: Cause, text: str) -> str:
    match = cause.text.search(text)
    assert match is not None
    if cause.code == "container_killed":
        code = match["code"] or match["short"]
        return f"killed{f' (exit {code})' if code else ''}: {' '.join(text.split())[:_SHOWN]}"
    # The cause stands at the end of long texts.
    return " ".join(text[max(0, match.start() - _SHOWN // 2) :].split())[:_SHOWN]


def _texts(metrics: RunMetrics) -> Iterator[tuple[str, str]]:
    """Yield (where, text) of all that ended, what is nearest to the cause first."""
    for entry in metrics.executors:
        if entry.reason and not _MEANT.search(entry.reason):
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
    if not any(line.startswith(_OF_LOST) for line in metrics.failures):
        return
    for entry in metrics.executors:
        # When an application ends, its executors go, too.
        is_at_end = (
            entry.removed_ms is not None
            and metrics.ended_ms is not None
            and entry.removed_ms >= metrics.ended_ms
        )
        if (
            entry.removed_ms is None
            or is_at_end
            or not entry.reason
            or _MEANT.search(entry.reason)
        ):
            continue
        if any(cause.text.search(entry.reason) for cause in CAUSES):
            continue
        title = f"lost: {' '.join(entry.reason.split())[:_SHOWN]}"
        cure = "its log names the cause (yarn logs, or Spark's page): a crash, a node that went, or memory"
        yield Finding(
            "lost_executor", title, f"executor {entry.executor} on {entry.host}", cure, severity
        )
        return
