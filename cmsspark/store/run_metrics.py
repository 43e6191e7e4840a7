"""What is stored of a measured run: one JSON file ``<state>/monitor/runs/<measured
run>/run.json``, a ``RunMetrics``.

Times are UTC milliseconds (``_ms``), durations milliseconds, memory and volumes bytes.
None is "not measured", 0 is a measured zero. The names of memory areas are Spark's
(:data:`AREAS`); runs by processes of the host use the same names where an area exists
for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.base.private_folders import make_private
from cmsspark.store import lease

#: Areas of memory in ``ExecutorEntry.peaks``, in the order of reports; all are bytes.
AREAS: Final = (
    *(
        "JVMHeapMemory",
        "JVMOffHeapMemory",
        "OnHeapExecutionMemory",
        "OffHeapExecutionMemory",
        "OnHeapStorageMemory",
    ),
    *(
        "OffHeapStorageMemory",
        "OnHeapUnifiedMemory",
        "OffHeapUnifiedMemory",
        "DirectPoolMemory",
        "MappedPoolMemory",
    ),
    *(
        "ProcessTreeJVMVMemory",
        "ProcessTreeJVMRSSMemory",
        "ProcessTreePythonVMemory",
        "ProcessTreePythonRSSMemory",
    ),
    *("ProcessTreeOtherVMemory", "ProcessTreeOtherRSSMemory"),
    # Cached blocks that found no room in memory; Spark has no area for them.
    "DiskStorage",
)
#: Counts and times in ``ExecutorEntry.peaks``: numbers of collections, and milliseconds
#: (``…Time``).
GC_METRICS: Final = ("MinorGCCount", "MinorGCTime", "MajorGCCount", "MajorGCTime", "TotalGCTime")
#: Samples that are kept; of more, the one with the largest memory in each interval stays.
MOST_SAMPLES: Final = 600
#: The format of the file. A later one may have fields that are not read here, and is
#: shown without them.
FORMAT: Final = 1


class Spread(msgspec.Struct, frozen=True):
    """How a value is spread over the tasks of a stage: least, median, largest. The
    median is exact to 1 %.

    ``task``, ``host``: the task with the largest value, and if it ran; None if
    only the spread is known.
    """

    min: int = 0
    median: int = 0
    max: int = 0
    task: int | None = None
    host: str | None = None


class TaskTotals(msgspec.Struct):
    """Sums over tasks, failed ones included. ``cpu_ms`` is the JVM's part of a task,
    not that of its Python worker.
    """

    tasks: int = 0
    failed_tasks: int = 0
    #: Of them, those that had done their work, which was lost with an executor.
    resubmitted_tasks: int = 0
    killed_tasks: int = 0
    speculative_tasks: int = 0
    task_ms: int = 0
    run_ms: int = 0
    cpu_ms: int = 0
    gc_ms: int = 0
    deserialize_ms: int = 0
    result_serialize_ms: int = 0
    fetch_wait_ms: int = 0
    shuffle_write_ms: int = 0
    result_bytes: int = 0
    input_bytes: int = 0
    input_records: int = 0
    output_bytes: int = 0
    output_records: int = 0
    shuffle_read_bytes: int = 0
    shuffle_read_records: int = 0
    shuffle_write_bytes: int = 0
    shuffle_write_records: int = 0
    memory_spilled_bytes: int = 0
    disk_spilled_bytes: int = 0
    #: The largest of a single task.
    peak_execution_bytes: int = 0

    @property
    def worked_ms(self) -> int:
        """The time in which the JVM worked for tasks: on a host that others load most of a
        task's time may be waiting for a core.
        """
        return min(self.run_ms, self.cpu_ms + self.gc_ms) if self.cpu_ms else self.run_ms


class StageEntry(msgspec.Struct):
    """An attempt of a stage. In a run by processes: one call of the pool of workers."""

    stage: int
    attempt: int = 0
    name: str = ""
    #: Number of tasks that it has; ``totals.tasks`` counts attempts of tasks that ended.
    task_count: int = 0
    submitted_ms: int | None = None
    completed_ms: int | None = None
    #: Why it failed; None for a stage that did not.
    failure: str | None = None
    totals: TaskTotals = msgspec.field(default_factory=TaskTotals)
    task_ms: Spread = msgspec.field(default_factory=Spread)
    shuffle_read_bytes: Spread = msgspec.field(default_factory=Spread)
    input_bytes: Spread = msgspec.field(default_factory=Spread)
    shuffle_read_records: Spread = msgspec.field(default_factory=Spread)
    #: The time of the task after the longest one; None where only the spread of times is known.
    second_task_ms: int | None = None
    #: The SQL execution that it is a part of.
    query: int | None = None
    #: Its tasks join rows of equal keys of two shuffles.
    is_join: bool = False
    #: Executor → area → peak while the stage ran.
    peaks: dict[str, dict[str, int]] = {}

    @property
    def duration_ms(self) -> int | None:
        """From its submission to its end; None if one of them is not known."""
        if self.submitted_ms is None or self.completed_ms is None:
            return None
        return max(0, self.completed_ms - self.submitted_ms)


class ExecutorEntry(msgspec.Struct):
    """An executor, the driver (``driver``), or in a run by processes the largest of the
    workers (``workers``).

    ``peaks``: area (:data:`AREAS`, :data:`GC_METRICS`) → the largest value seen. Peaks
    are sampled: the last one of a killed process is missing, so they are lower bounds
    for it.
    """

    executor: str
    host: str = ""
    cores: int = 0
    added_ms: int | None = None
    removed_ms: int | None = None
    #: Why it was removed, as Spark writes it.
    reason: str | None = None
    heap_max_bytes: int | None = None
    totals: TaskTotals = msgspec.field(default_factory=TaskTotals)
    peaks: dict[str, int] = {}


class Sample(msgspec.Struct, omit_defaults=True):
    """A sample of the processes of the run on this host. None: there is no such
    process, or it could not be read.

    RSS counts shared pages in each process. ``heap_bytes`` is the used heap of the
    driver's JVM, ``active_tasks`` the number of running tasks where REST or the event
    log has it.
    """

    at_ms: int
    driver_jvm_rss: int | None = None
    driver_python_rss: int | None = None
    workers_rss: int | None = None
    workers: int | None = None
    #: PID of the largest Python worker, and its RSS.
    largest_worker: int | None = None
    largest_worker_rss: int | None = None
    heap_bytes: int | None = None
    cpu_ms: int | None = None
    active_tasks: int | None = None
    #: Bytes that the driver's JVM has read and written since it started, in files and sockets.
    jvm_moved_bytes: int | None = None
    #: Bytes that the driver's Python has written to files; its sockets are not counted.
    python_written_bytes: int | None = None
    #: Processes that run or wait for a core of this host, the mean of a minute.
    host_load: float | None = None


class Finding(msgspec.Struct, frozen=True):
    """Something that costs time or memory, or ended the run: ``code`` from ``schemas/findings.yaml``."""

    code: str
    #: One line: what happened, with the numbers.
    title: str
    #: Where: a stage, an executor, a time.
    where: str
    #: What to change.
    cure: str
    severity: str = "warning"


class Reported(msgspec.Struct, omit_defaults=True):
    """Figures that a job reports: bytes and files that its tasks read by path, which
    Spark's metrics do not count.
    """

    run: str = ""
    job: str = ""
    day: str = ""
    input_bytes: int = 0
    input_files: int = 0
    input_records: int = 0
    #: Of them, those that could not be read.
    malformed_records: int = 0


class Query(msgspec.Struct, omit_defaults=True):
    """A SQL execution, with what matters for advice in its plan."""

    execution: int
    description: str = ""
    began_ms: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    #: Nodes of the plan worth naming: (kind, text, rows or files or bytes where known).
    nodes: list[tuple[str, str, int | None]] = []


class RunMetrics(msgspec.Struct, omit_defaults=True):
    """A measured run. ``engine``: ``spark`` or ``processes``. ``state``: RUNNING, DONE
    or FAILED, of an event log alone ENDED or, where it has no end, UNKNOWN.

    ``sources``: what the figures come from, of ``events``, ``rest``, ``samples``,
    ``reported``. ``notes``: what is missing and why. ``task_spans``: (first, last)
    times in which at least one task ran, joined where they are near.
    """

    run: str
    job: str
    engine: str
    began_ms: int
    state: str = "RUNNING"
    format: int = FORMAT
    ended_ms: int | None = None
    exit_code: int | None = None
    host: str = ""
    #: The process that started the run, as ``store.process_identity`` names it.
    process: dict[str, str | int | None] = {}
    #: The step of a suite that it was started by: ``RUN/NUMBER/``.
    step: str | None = None
    #: PID of the spark-submit child, the root of the process tree.
    root_pid: int | None = None
    application: str | None = None
    application_name: str = ""
    spark_version: str = ""
    master: str = ""
    deploy_mode: str = ""
    sources: list[str] = []
    notes: list[str] = []
    totals: TaskTotals = msgspec.field(default_factory=TaskTotals)
    jobs: int = 0
    failed_jobs: int = 0
    stage_count: int = 0
    #: At most 1,000: those with the most task time.
    stages: list[StageEntry] = []
    executors: list[ExecutorEntry] = []
    queries: list[Query] = []
    #: Hints from stages on RDDs: (kind, where in the program, bytes where known).
    rdd_hints: list[tuple[str, str, int | None]] = []
    #: Why tasks failed, the line that names the error → times; at most 50.
    failures: dict[str, int] = {}
    #: The whole text of the first of them, by that line; at most 10, the last 20,000
    #: characters of each.
    failure_texts: dict[str, str] = {}
    #: Why stages failed → times; at most 50.
    stage_failures: dict[str, int] = {}
    #: The last trace that the driver's Python wrote; the last 20,000 characters.
    driver_trace: str | None = None
    #: Lines of the driver's log that name a cause of trouble; at most 50.
    log_lines: list[str] = []
    reported: list[Reported] = []
    #: Options of Spark that concern memory and parallelism.
    options: dict[str, str] = {}
    samples: list[Sample] = []
    task_spans: list[tuple[int, int]] = []
    findings: list[Finding] = []
    #: CPU of all processes of the run on this host that could be seen, milliseconds.
    cpu_ms: int | None = None
    event_log: str | None = None
    #: The folder of an event log on another file system that is not read yet.
    pending_events: str | None = None
    #: Memory of the smallest node that executors may get, where the cluster reports it.
    smallest_node_bytes: int | None = None
    #: Cores of the host that was sampled.
    host_cores: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether the driver runs the tasks, too; executors of ``local-cluster`` do not."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def engine_text(self) -> str:
        """What ran it: the version, application and master of Spark, or processes."""
        if self.engine != "spark":
            return "processes of this host"
        spark = f"Spark {self.spark_version} {self.application or ''}"
        return f"{' '.join(spark.split())}, {self.master}".rstrip(", ")


class _Format(msgspec.Struct):
    format: int = 0


def runs_folder(state_dir: Path) -> Path:
    """Return the folder with one folder for each measured run."""
    return state_dir / "monitor" / "runs"


def events_folder(state_dir: Path) -> Path:
    """Return the folder that Spark writes event logs of measured runs into."""
    return state_dir / "monitor" / "events"


def run_file(state_dir: Path, run: str) -> Path:
    """Return the file of a measured run."""
    return runs_folder(state_dir) / run / "run.json"


def read(path: Path) -> RunMetrics:
    """Read a file; one of a later format gets a note. Raises OSError, and ValueError
    for none of ours.
    """
    content = path.read_bytes()
    try:
        metrics = msgspec.json.decode(content, type=RunMetrics)
    except (msgspec.ValidationError, RecursionError) as error:
        later = 0
        with suppress(ValueError, RecursionError):
            later = msgspec.json.decode(content, type=_Format).format
        reason = (
            f"format {later}; this version reads format {FORMAT}" if later > FORMAT else str(error)
        )
        raise ValueError(reason) from None
    if metrics.format > FORMAT:
        metrics.notes.append(
            f"format {metrics.format} of a later version: what it adds is not shown"
        )
    return metrics


def state_now(state: str, process: Mapping[str, Any]) -> str:
    """Return the state of a run; one whose process ended without storing its end has failed."""
    return "FAILED" if state == "RUNNING" and lease.lives(process) is False else state


def as_of_now(metrics: RunMetrics) -> RunMetrics:
    """Return the run with its :func:`state_now`, and a note where that is not the stored one."""
    state = state_now(metrics.state, metrics.process)
    if state != metrics.state:
        metrics.state = state
        metrics.notes.append("run_spark was killed: what was measured until then is shown")
    return metrics


def write(path: Path, metrics: RunMetrics) -> None:
    """Write a file as a whole: readers see the old one or the new one. Folders and
    files are private.
    """
    make_private(path.parent)
    aside = path.with_name(f".{path.name}.new")
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(metrics), indent=1))
    aside.chmod(0o600)
    aside.replace(path)
