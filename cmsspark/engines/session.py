"""The Spark session: made from what ``run_spark`` configured, with sane local defaults
for notebooks and tests.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import errors
from cmsspark.base.resources import resource
from cmsspark.base.text.progress_line import ProgressLine, is_quiet
from cmsspark.filesystems.hdfs import hdfs_damage
from cmsspark.filesystems.refusals import refusal, start_error
from cmsspark.settings import kerberos
from cmsspark.settings.settings import Settings, load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: What correct numbers depend on: set here as well as in the profiles, so that no way
#: in forgets them.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
}

#: The second compiler only takes code that has run ten times as often as by default, as
#: in etc/spark/cluster.yaml: a first answer takes a quarter less CPU time, and long
#: computations still get it.
LATE_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)

#: Why an executor is gone, as the driver tells it.
_LOST = re.compile(r"ExecutorLostFailure \([^)]*\) Reason: (.*)")
#: What is said when YARN ended the application, or its JVM is gone, while the job was at work.
_ENDED = re.compile(
    r"SparkContext was shut ?down|[Ss]topped SparkContext|Answer from Java side is empty"
    r'|SparkContext\.dagScheduler\(\)" is null'
    r"|^\[Errno 111\] Connection refused|Error while sending or receiving"
)
_NEVER_BEGAN = (
    "YARN application has already ended",
    "YarnClientSchedulerBackend.waitFor",
    "a stopped SparkContext",
)

#: How Spark names a file that its own readers failed on, and an exception that led to another.
_UNREAD = re.compile(
    r"rror while reading file (\S.*?)\.?(?:\s+SQLSTATE|\s+Details|\s+File does not exist\. It is|\n|$)"
)
#: What file systems say when there is no room, and where Spark could not write.
_FULL = re.compile(r"No space left on device|Disk quota exceeded|[DN]SQuotaExceededException")
_UNWRITTEN = re.compile(r"TASK_WRITE_FAILED\] Task failed while writing rows to (\S+?)\.?(?:\s|$)")
#: Where Spark was when it wrote a result, and not shuffled rows.
_WRITING = re.compile(
    r"FileFormatWriter|FileFormatDataWriter|FileOutputCommitter|OutputWriter|WriteFilesExec"
)
#: The filter of YARN's proxy may arrive while the server of Spark's page starts.
_LOST_RACE = "ConcurrentModificationException"
_CAUSE = re.compile(r"^Caused by: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)


def session(app: str, **conf: str) -> SparkSession:
    """Return the session of a job: the running one, or one with the options that
    spark-submit was given.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("TZ", "UTC")
    running = SparkSession.getActiveSession()
    if running is not None and all(
        running.conf.get(name, None) == value for name, value in NEEDED.items()
    ):
        # The builder would return it too, with a warning.
        return running
    builder = SparkSession.builder.appName(app)
    for name, value in {**NEEDED, **conf}.items():
        builder = builder.config(name, value)
    if not _is_submitted():
        # Started by import, not by spark-submit: a laptop's defaults.
        for name, value in {
            "spark.master": "local[*]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "8",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.defaultJavaOptions": LATE_COMPILER,
        }.items():
            if name not in conf:
                builder = builder.config(name, value)
    try:
        try:
            return builder.getOrCreate()
        except Exception as error:
            if _LOST_RACE not in str(error):
                raise
            sys.stderr.write("two threads of Spark met while it started: it starts once more\n")
            return builder.getOrCreate()
    except Exception as error:
        raise why_not_started(str(error)) or error from None


def has_session() -> bool:
    """Return whether there is a Spark for :func:`session`: spark-submit's, or a session
    of this process.
    """
    if _is_submitted():
        return True
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _is_submitted() -> bool:
    """Return whether spark-submit started this process."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def count_cores(spark: SparkSession) -> int:
    """Return the most cores that the application may get."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return int(spark.sparkContext.defaultParallelism)
    executors = conf.get("spark.dynamicAllocation.maxExecutors", "")
    return int(executors or 1) * int(conf.get("spark.executor.cores", "1") or 1)


def unwrap_cause(error: Exception) -> Exception:
    """Unwrap the CmssparkError inside a Spark exception, or convert an error of Spark's
    own; else return ``error``.
    """
    if (ours := errors.as_ours(error)) is not None:
        return ours
    text = str(error)
    for kind in (
        errors.DataError,
        errors.NotAllowed,
        errors.InputMissing,
        errors.NotReady,
        errors.SettingsError,
    ):
        marker = f"{kind.__module__}.{kind.__name__}: "
        if marker in text:
            problem, *lines = text.split(marker, 1)[1].splitlines()
            values: dict[str, str] = {}
            for line in lines[:3]:
                name, colon, value = line.strip().partition(": ")
                if not (colon and line.startswith("  ")):
                    break
                values[name] = value
            return kind(
                problem,
                where=values.get("where"),
                found=values.get("found"),
                next_step=values.get("next"),
            )
    if "ARITHMETIC_OVERFLOW" in text:
        return errors.DataError(
            "a sum is beyond 2^63-1", next_step="look for absurd sizes in the log"
        )
    unread = _UNREAD.search(text)
    if unread:
        return _not_read(unread[1], text)
    return _not_written(text) or refusal(text) or _not_done(text) or error


def _not_written(text: str) -> errors.CmssparkError | None:
    """Return what Spark says of a disk that is full, and of a result that it cannot write."""
    full = _FULL.search(text)
    unwritten = _UNWRITTEN.search(text)
    if unwritten is None and "QuotaExceededException" in text:
        return None  # the table of refusals names the folder
    if full or unwritten:
        causes = _CAUSE.findall(text)
        is_store = bool(unwritten or _WRITING.search(text))
        location = "in the store" if is_store else "in spark.local.dir, which holds shuffled rows"
        return errors.OutputError(
            "the result cannot be written"
            if is_store
            else "there is no room for what Spark keeps on disk",
            where=unwritten[1] if unwritten else None,
            found=full[0]
            if full
            else f"{causes[-1][0]}: {causes[-1][1]}".strip(": ")
            if causes
            else None,
            next_step=f"make room or get permission {location}, then run it again",
        )
    return None


def _not_done(text: str) -> errors.CmssparkError | None:
    """Return what Spark says of a worker that is gone, and of an application that ended."""
    lost = _LOST.findall(text)
    if "Python worker exited unexpectedly" in text or lost:
        return errors.NotReady(
            "a task was ended from outside",
            found=lost[-1][:300] if lost else "its Python worker is gone",
            next_step="check whether memory ran out; run it again with fewer cores or more memory "
            "(spark.executor.memoryOverhead is what Python has on YARN)",
        )
    if (ended := _ENDED.search(text)) is not None:
        # Not the first line, which may be Py4J's.
        line = text[text.rfind("\n", 0, ended.start()) + 1 :].partition("\n")[0]
        return errors.NotReady(
            "Spark's application ended before the job did",
            found=line.strip(": ")[:300],
            next_step="its logs have the reason, such as a lost node or too many executors that failed; run it again",
        )
    return None


def why_not_started(text: str) -> errors.CmssparkError | None:
    """Return what it means that there is no session; None where no exception of Java says why."""
    if (refused := refusal(text)) is not None:
        return refused
    if _LOST_RACE in text:
        return errors.NotReady(
            "two threads of Spark met while it started", next_step="run it again"
        )
    failed = re.search(r"Application (application_\d+_\d+) (failed|was killed)[^\n]*", text)
    if failed or any(phrase in text for phrase in _NEVER_BEGAN):
        return errors.NotReady(
            "YARN ended the application before it began",
            where=failed[1] if failed else None,
            found=failed[0][:300] if failed else _first_reason(text),
            next_step=f"yarn logs -applicationId {failed[1] if failed else '…'} says why; where the nodes cannot "
            "connect to this host, set spark.driver.host or use --deploy-mode cluster",
        )
    reason = _first_reason(text)
    return None if reason is None else start_error(reason)


def _first_reason(text: str) -> str | None:
    reasons = [line for line in text.splitlines() if "Exception" in line and "Py4J" not in line]
    return reasons[0].strip(": ")[:300] if reasons else None


def _not_read(file: str, text: str) -> errors.CmssparkError:
    """Return what Spark's "error while reading file" means, by the innermost of its causes."""
    causes = _CAUSE.findall(text)
    name, reason = causes[-1] if causes else ("", "")
    reason_text = f"{name}: {reason}".strip(": ") or None
    if name.endswith("AccessControlException"):
        return errors.NotAllowed("access is refused", where=file, found=reason_text)
    if name.endswith("FileNotFoundException"):
        return errors.InputMissing("a listed file cannot be read", where=file, found=reason_text)
    if (damage := hdfs_damage(text, file)) is not None:
        return damage
    if name.startswith(("java.net.", "org.apache.hadoop.ipc.")) or name.endswith(
        "BlockMissingException"
    ):
        return errors.NotReady(
            "the file system did not answer as it should", where=file, found=reason_text
        )
    return errors.DataError(
        "a file is damaged",
        where=file,
        found=reason_text,
        next_step="fetch the file again from its source",
    )


@contextmanager
def static_plans(spark: SparkSession) -> Iterator[None]:
    """Run queries of set numbers of partitions without adaptive execution, a job for
    each exchange.
    """
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before or "")


#: Options of file systems, and of the jars that they come in: S3's are not among Spark's own.
_ACCESS: Final = ("spark.hadoop.", "spark.kerberos.", "spark.jars", "spark.driver.extraClassPath")
#: A server of S3 that is not there is reported after half a minute, not after a quarter
#: of an hour.
_S3_PATIENCE: Final = {
    "spark.hadoop.fs.s3a.attempts.maximum": "2",
    "spark.hadoop.fs.s3a.retry.limit": "3",
}


def small_session(app: str, settings: Settings | None = None) -> SparkSession:
    """Return a session for looking at a file system only: quiet, and quickly there.

    It takes the options for file systems and Kerberos (``spark.hadoop.*``,
    ``spark.kerberos.*``) and the jars that file systems come in (``spark.jars*``, the
    driver's class path) from ``settings``, by default those of the environment. In a
    job that spark-submit started it is that job's: YARN ends a driver of its own that
    has another master. Raises NotAllowed (77) where the cluster wants Kerberos and
    there is neither a ticket nor a keytab, before a JVM starts.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return session(app)
    values = (settings or load_settings()).spark
    access = {name: value for name, value in values.items() if name.startswith(_ACCESS)}
    if not has_session():
        kerberos.check(
            os.environ, *map(access.get, ("spark.kerberos.principal", "spark.kerberos.keytab"))
        )
    quiet = f'"-Dlog4j2.configurationFile=file:{resource("etc/log4j2.properties")}"'
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    off = dict.fromkeys(("spark.ui.enabled", "spark.eventLog.enabled"), "false")
    options = {**off, "spark.driver.defaultJavaOptions": f"{quiet} {quick}"}
    return session(app, **{"spark.master": "local[1]", **options, **_S3_PATIENCE, **access})


# What Spark's status says to people: the progress of a job, the page of a local run,
# and where tasks ran.

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


# What befell a run on a cluster: lost executors, stages and tasks that ran again,
# speculative copies of tasks.

#: Reasons of Spark for executors that it lets go: they are no loss.
_LET_GO: Final = re.compile(
    r"killed by driver|idle|explicit termination request|decommission|exited with code 0\b",
    re.IGNORECASE,
)
#: Why Spark ends a task of which a copy was faster.
_OTHER_ATTEMPT: Final = "another attempt succeeded"
#: What a task says, far below, of a disk without room.
_DISK_FULL: Final = re.compile(r"[\w.]*: No space left on device")
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
            full = _DISK_FULL.search(text)
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
