"""Reads an event log of Spark, 3.5 or 4.x, line by line into a ``RunMetrics``, in
memory that does not grow with it.

Kept are sums, sketches of the tasks of open stages, the 1,000 stages with the most task
time, and peaks by executor. Lines that are no events are counted; a last line that is
cut is no fault of the log.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.logs import records
from cmsspark.apps.monitor.logs.files import LogLines
from cmsspark.apps.monitor.logs.plans import Plans, Rdds
from cmsspark.apps.monitor.logs.records import StageInfo, TaskEnd
from cmsspark.base.errors import DataError
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.run_metrics import ExecutorEntry, RunMetrics, Spread, StageEntry, TaskTotals

#: RDDs that join the partitions of two others.
_JOINING: Final = ("ZippedPartitionsRDD2", "CoGroupedRDD")
#: Executors whose peaks a stage keeps: those with the most memory.
_MOST_EXECUTORS: Final = 5
_MOST_HELD: Final = 200


def merge_peaks(into: dict[str, int], peaks: Mapping[str, int] | None) -> None:
    """Keep the larger value of each area."""
    for name, value in (peaks or {}).items():
        if value > into.get(name, -1):
            into[name] = value


class TaskSums:
    """Adds tasks to ``totals``. Nanoseconds become milliseconds as a sum: many tasks
    take less than one.
    """

    def __init__(self, totals: TaskTotals) -> None:
        self.totals = totals
        self._cpu_ns = self._shuffle_write_ns = 0

    def add(self, event: TaskEnd) -> None:
        """Add an attempt of a task that ended, however it ended. Bytes of failed tasks
        were read and written, too.
        """
        info, metrics, totals = event.info, event.metrics, self.totals
        is_resubmitted = event.reason.reason == "Resubmitted"
        totals.tasks += 1
        totals.failed_tasks += info.failed
        totals.resubmitted_tasks += is_resubmitted
        totals.killed_tasks += info.killed
        totals.speculative_tasks += info.speculative
        # The time of a task whose output was lost was added when it ended first.
        totals.task_ms += 0 if is_resubmitted else max(0, info.finish - info.launch)
        if metrics is None:
            return
        self._cpu_ns += metrics.cpu_ns
        totals.cpu_ms = self._cpu_ns // 1_000_000
        totals.run_ms += metrics.run
        totals.gc_ms += metrics.gc
        totals.deserialize_ms += metrics.deserialize
        totals.result_serialize_ms += metrics.serialize
        totals.result_bytes += metrics.result
        totals.memory_spilled_bytes += metrics.memory_spilled
        totals.disk_spilled_bytes += metrics.disk_spilled
        totals.peak_execution_bytes = max(totals.peak_execution_bytes, metrics.peak)
        if (read := metrics.shuffle_read) is not None:
            totals.shuffle_read_bytes += read.remote + read.local
            totals.shuffle_read_records += read.records
            totals.fetch_wait_ms += read.wait
        if (write := metrics.shuffle_write) is not None:
            totals.shuffle_write_bytes += write.bytes
            totals.shuffle_write_records += write.records
            self._shuffle_write_ns += write.ns
            totals.shuffle_write_ms = self._shuffle_write_ns // 1_000_000
        if metrics.input is not None:
            totals.input_bytes += metrics.input.bytes
            totals.input_records += metrics.input.records
        if metrics.output is not None:
            totals.output_bytes += metrics.output.bytes
            totals.output_records += metrics.output.records


#: Fields of a stage that are spreads over its tasks.
_SPREADS: Final = ("task_ms", "shuffle_read_bytes", "shuffle_read_records", "input_bytes")


class OpenStage:
    """An attempt of a stage whose tasks still end."""

    def __init__(self, stage: int, attempt: int) -> None:
        self.entry = StageEntry(stage, attempt)
        self._sums = TaskSums(self.entry.totals)
        self._sketches = {name: QuantileSketch() for name in _SPREADS}
        self._longest_ms = 0
        self._peaks: dict[str, dict[str, int]] = {}

    def describe(self, info: StageInfo) -> None:
        """Take Spark's description of the stage, at its begin or end."""
        entry = self.entry
        entry.name, entry.task_count = info.name[:200], info.tasks
        entry.submitted_ms = info.submitted if info.submitted is not None else entry.submitted_ms
        entry.completed_ms = info.completed
        entry.is_join = any(rdd.name in _JOINING for rdd in info.rdds)
        if info.failure:
            entry.failure = info.failure.strip()[:500]

    def add(self, event: TaskEnd) -> None:
        """Add a task. Only tasks that did their work count for the spreads."""
        info, metrics = event.info, event.metrics
        self._sums.add(event)
        if info.failed or info.killed:
            return
        duration = max(0, info.finish - info.launch)
        shuffle = metrics.shuffle_read if metrics is not None else None
        read = shuffle.remote + shuffle.local if shuffle is not None else 0
        records = shuffle.records if shuffle is not None else 0
        size = metrics.input.bytes if metrics is not None and metrics.input is not None else 0
        values = (duration, read, records, size)
        for sketch, value in zip(self._sketches.values(), values, strict=True):
            sketch.add(value, info.index, info.host)
        self.entry.second_task_ms = max(
            self.entry.second_task_ms or 0, min(duration, self._longest_ms)
        )
        self._longest_ms = max(self._longest_ms, duration)
        if event.peaks and (any(event.peaks.values())):
            self.add_peaks(info.executor, event.peaks)

    def add_peaks(self, executor: str, peaks: Mapping[str, int]) -> None:
        """Peaks of an executor while the stage ran."""
        merge_peaks(self._peaks.setdefault(executor, {}), peaks)
        if len(self._peaks) > _MOST_HELD:
            self._peaks = self._with_most_memory()

    def _with_most_memory(self) -> dict[str, dict[str, int]]:
        def memory(name: str) -> int:
            return self._peaks[name].get("JVMHeapMemory", 0) + self._peaks[name].get(
                "ProcessTreePythonRSSMemory", 0
            )

        return {
            name: self._peaks[name] for name in sorted(self._peaks, key=memory)[-_MOST_EXECUTORS:]
        }

    def closed(self) -> StageEntry:
        """Return the stage as it is stored."""
        for name, sketch in self._sketches.items():
            setattr(self.entry, name, sketch.spread())
        self.entry.peaks = self._with_most_memory()
        return self.entry


#: The ratio of the bounds of a bucket: a median from it is exact to half of that, 1 %.
_RATIO = 1.02
_LOG = math.log(_RATIO)


class QuantileSketch:
    """Counts of values in buckets whose bounds grow by 2 %; least and largest are
    exact. Values are not negative.
    """

    __slots__ = ("_buckets", "_count", "_host", "_max", "_min", "_task")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = self._max = 0
        self._min: int | None = None
        self._task: int | None = None
        self._host: str | None = None

    def add(self, value: int, task: int | None = None, host: str | None = None) -> None:
        """Add a value of a task; a negative one counts as 0."""
        value = max(0, value)
        bucket = int(math.log(value) / _LOG) + 1 if value else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        if self._min is None or value > self._max:
            self._max, self._task, self._host = value, task, host
        self._min = value if self._min is None else min(self._min, value)

    def spread(self) -> Spread:
        """Return least, median, largest of what was added, with the task of the
        largest; zeros where nothing was.
        """
        if self._min is None:
            return Spread()
        median, remaining = self._max, (self._count + 1) // 2
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining <= 0:
                middle = round(math.exp((bucket - 0.5) * _LOG)) if bucket else 0
                median = min(max(middle, self._min), self._max)
                break
        return Spread(self._min, median, self._max, self._task, self._host)


class Spans:
    """Intervals of time, merged; where there are too many, gaps between them are
    closed, the shortest first.
    """

    def __init__(self, most: int = 2000) -> None:
        self._spans: list[tuple[int, int]] = []
        self._most = most
        self._gap = 0

    def add(self, first: int, last: int) -> None:
        """Add an interval."""
        self._spans.append((first, max(first, last)))
        if len(self._spans) > 10 * self._most:
            self._spans = self.merged()

    def merged(self) -> list[tuple[int, int]]:
        """Return the intervals in order; at most ``most``."""
        while True:
            merged: list[tuple[int, int]] = []
            for first, last in sorted(self._spans):
                if merged and first <= merged[-1][1] + self._gap:
                    merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
                else:
                    merged.append((first, last))
            if len(merged) <= self._most:
                return merged
            self._gap = 2 * self._gap or 10


MOST_STAGES: Final = 1000
_LONGEST_LENIENT: Final = 1 << 20
#: Stages that ended whose tasks may still end: killed copies of tasks do so later.
_MOST_ENDED: Final = 200
_MOST_FAILURES: Final = 50
#: Failures of tasks of which the whole text is kept.
_MOST_TEXTS: Final = 10
_LONGEST_FAILURE: Final = 500
#: Names of stages that are places in Spark's own code.
_OF_SPARK: Final = re.compile(
    r"\$anonfun\$|.* at \$anonfun|.* at (?:CompletableFuture|SQLExecution)\."
)
_NAME: Final = re.compile(rb'\{"Event":"([\w.]+)"')


class EventLogReader(msgspec.Struct):
    """Takes the lines of one event log; ``metrics`` gives the result at any time."""

    run: RunMetrics = msgspec.field(default_factory=lambda: RunMetrics("", "", "spark", 0))
    lines: int = 0
    damaged: int = 0
    skipped: int = 0
    #: Lines with a plan that is nested deeper than can be read.
    deep: int = 0
    first_ms: int = 0
    last_ms: int = 0
    begun: bool = False
    ended: bool = False
    #: Stages that ended well with fewer tasks in the log than they had: number → both.
    incomplete: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: The log says the options of Spark.
    has_options: bool = False
    #: How many jobs and tasks Spark had begun, by their numbers, which have no gap.
    job_numbers: int = 0
    task_numbers: int = 0
    #: Tasks of failed stages that may still have run when the stage ended.
    _unended_tasks: int = 0
    #: Queries that jobs name, and of which the log has no begin.
    unknown_queries: set[int] = msgspec.field(default_factory=set)
    #: Which run of run_spark wrote the log: a system property or, where the driver is
    #: on another host, an option.
    measured_run: str | None = None
    _last_was_damaged: bool = False
    _stages: dict[tuple[int, int], OpenStage] = msgspec.field(default_factory=dict)
    _ended: dict[tuple[int, int], OpenStage] = msgspec.field(default_factory=dict)
    _longest_stages: list[tuple[int, int, StageEntry]] = msgspec.field(default_factory=list)
    _executors: dict[str, ExecutorEntry] = msgspec.field(default_factory=dict)
    #: By executor; None for those of the run.
    _sums: dict[str | None, TaskSums] = msgspec.field(default_factory=dict)
    _users: dict[int, str] = msgspec.field(default_factory=dict)
    #: Stage → its SQL execution, and the line of the program that started its job.
    _call_sites: dict[int, tuple[int | None, str]] = msgspec.field(default_factory=dict)
    _job_stages: dict[int, list[int]] = msgspec.field(default_factory=dict)
    _plans: Plans = msgspec.field(default_factory=Plans)
    _rdds: Rdds = msgspec.field(default_factory=Rdds)
    _spans: Spans = msgspec.field(default_factory=Spans)

    def read(self, lines: Iterable[bytes]) -> None:
        """Take lines."""
        for line in lines:
            self.take(line)

    def take(self, line: bytes) -> None:
        """Take one line."""
        if not line.strip():
            return
        self.lines += 1
        self._last_was_damaged = False
        try:
            match = _NAME.match(line)
            name = match[1].decode() if match else records.NAME_DECODER.decode(line).event
            if name not in _DECODERS:
                self.skipped += 1
                return
            try:
                event = _DECODERS[name].decode(line)
            except msgspec.ValidationError:
                # As Python objects a line takes many times its size.
                if len(line) > _LONGEST_LENIENT:
                    raise
                event = records.decode_leniently(_EVENTS[name][0], line)
        except RecursionError:
            self.deep += 1
            return
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.damaged += 1
            self._last_was_damaged = True
            return
        _EVENTS[name][1](self, event)

    @property
    def open_stages(self) -> int:
        """Return how many stages were submitted, or did work, and have not ended."""
        return sum(
            stage.entry.submitted_ms is not None or _done_tasks(stage.entry.totals) > 0
            for stage in self._stages.values()
        )

    @property
    def missing_jobs(self) -> int:
        """Return how many jobs have a number, but no begin in the log."""
        return max(0, self.job_numbers - self.run.jobs)

    @property
    def missing_tasks(self) -> int:
        """Return how many tasks have a number, but no end in the log, though no stage says
        that it lacks them; 0 where copies of tasks ran, which may end after all else.
        """
        totals = self.run.totals
        if totals.speculative_tasks:
            return 0
        stages = [stage.entry for stage in self._stages.values()]
        running = sum(max(0, entry.task_count - entry.totals.tasks) for entry in stages)
        reported = sum(had - seen for seen, had in self.incomplete.values())
        ended = totals.tasks - totals.resubmitted_tasks
        return max(0, self.task_numbers - ended - self._unended_tasks - running - reported)

    def metrics(self) -> RunMetrics:
        """Return what was read until now."""
        run = self.run
        for stage in self._stages.values():
            self._keep(stage)
        self._stages.clear()
        for stage in self._ended.values():
            stage.closed()
        stages = (entry for _, _, entry in self._longest_stages)
        run.stages = sorted(stages, key=lambda entry: (entry.stage, entry.attempt))
        run.executors = list(self._executors.values())
        run.queries = self._plans.queries()
        run.rdd_hints = [*self._rdds.hints(), *self._plans.repeated()]
        run.task_spans = self._spans.merged()
        run.sources = [*dict.fromkeys([*run.sources, "events"])]
        if not run.began_ms and not self.begun:
            run.began_ms = self.first_ms
        if run.ended_ms is None and self.last_ms:
            run.ended_ms = self.last_ms
        return run

    # One method for each event.

    def _log_start(self, event: records.LogStart) -> None:
        self.run.spark_version = event.version

    def _application_start(self, event: records.ApplicationStart) -> None:
        self.run.application, self.run.application_name = event.id, event.name
        self.run.began_ms = self.run.began_ms or event.at
        self.begun = True

    def _application_end(self, event: records.Timed) -> None:
        self.run.ended_ms, self.ended = event.at, True

    def _environment(self, event: records.EnvironmentUpdate) -> None:
        options = {
            name: value for name, value in event.spark.items() if sizes.KEPT.fullmatch(name)
        }
        self.run.options.update(options)
        self.has_options = True
        self.run.master = options.get("spark.master", self.run.master)
        self.run.deploy_mode = options.get("spark.submit.deployMode", self.run.deploy_mode)
        named = event.system.get("cmsspark-run") or event.spark.get("spark.cmsspark.run")
        self.measured_run = named or self.measured_run

    def _executor(self, name: str) -> ExecutorEntry:
        return self._executors.setdefault(name, ExecutorEntry(name))

    def _executor_added(self, event: records.ExecutorAdded) -> None:
        entry = self._executor(event.executor)
        entry.host, entry.cores, entry.added_ms = event.info.host, event.info.cores, event.at

    def _executor_removed(self, event: records.ExecutorRemoved) -> None:
        entry = self._executor(event.executor)
        entry.removed_ms, entry.reason = event.at, event.reason[:1000]

    def _job_start(self, event: records.JobStart) -> None:
        self.run.jobs += 1
        self.job_numbers = max(self.job_numbers, event.job + 1)
        execution = (event.properties or {}).get("spark.sql.execution.id")
        user = f"sql {execution}" if execution is not None else f"job {event.job}"
        if str(execution).isdigit() and int(execution or 0) > self._plans.latest:
            self.unknown_queries.add(int(execution or 0))
        callsite = str((event.properties or {}).get("callSite.short") or "")
        self._job_stages[event.job] = event.stages
        for stage in event.stages:
            self._users[stage] = user
            self._call_sites[stage] = (
                int(execution) if execution is not None and str(execution).isdigit() else None,
                callsite,
            )

    def _job_end(self, event: records.JobEnd) -> None:
        self.run.failed_jobs += event.result.result not in ("", "JobSucceeded")
        self.job_numbers = max(self.job_numbers, event.job + 1)
        for stage in self._job_stages.pop(event.job, ()):
            self._users.pop(stage, None)
            self._call_sites.pop(stage, None)

    def _stage_submitted(self, event: records.StageEvent) -> None:
        info = event.info
        # The ids of a second context in one log begin again.
        if (ended := self._ended.pop((info.stage, info.attempt), None)) is not None:
            ended.closed()
        if info.stage not in self._call_sites:
            # Its job began before it, so that the log has lost the job.
            self.job_numbers = max(self.job_numbers, self.run.jobs + 1)
        self._describe(self._stage(info.stage, info.attempt), info)

    def _describe(self, stage: OpenStage, info: records.StageInfo) -> None:
        """Describe a stage; one that Spark names after its own threads gets the program's
        line.
        """
        stage.describe(info)
        query, callsite = self._call_sites.get(info.stage, (None, ""))
        entry = stage.entry
        entry.query = query if query is not None else entry.query
        if _OF_SPARK.match(entry.name):
            described = self._plans.query(query) if query is not None else None
            better = callsite if not _OF_SPARK.match(callsite) else ""
            if not better and described is not None:
                better = described.description
            entry.name = (better or entry.name)[:200]

    def _stage_completed(self, event: records.StageEvent) -> None:
        info = event.info
        stage = self._stages.pop((info.stage, info.attempt), None) or OpenStage(
            info.stage, info.attempt
        )
        self._describe(stage, info)
        self.last_ms = max(self.last_ms, info.completed or 0)
        self._first(info.submitted)
        done = stage.entry.totals
        seen = _done_tasks(done)
        # Of two copies of a task one may be killed, or end, too.
        if not info.failure and seen + done.resubmitted_tasks < info.tasks:
            self.incomplete[info.stage] = (seen, info.tasks)
        if info.failure:
            self._unended_tasks += max(0, info.tasks - done.tasks)
            _count(self.run.stage_failures, " ".join(info.failure[:_LONGEST_FAILURE].split()))
        totals = stage.entry.totals
        self._plans.accumulate(
            ((entry.id, entry.value) for entry in info.accumulables),
            info.tasks,
            max(0, totals.run_ms - totals.cpu_ms),
        )
        user = self._users.get(info.stage, f"stage {info.stage}")
        self._rdds.completed(info, user, stage.entry.totals.shuffle_write_bytes)
        self._keep(stage)
        self._ended[info.stage, info.attempt] = stage
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended))).closed()

    def _first(self, at_ms: int | None) -> None:
        if at_ms and (not self.first_ms or at_ms < self.first_ms):
            self.first_ms = at_ms

    def _stage(self, stage: int, attempt: int) -> OpenStage:
        """Return the stage, also one that has ended, or of which the log has no begin."""
        key = (stage, attempt)
        if (entry := self._stages.get(key) or self._ended.get(key)) is None:
            entry = self._stages[key] = OpenStage(stage, attempt)
        return entry

    def _keep(self, stage: OpenStage) -> None:
        entry = stage.closed()
        self.run.stage_count += 1
        # The number only orders stages with as much task time.
        item = (entry.totals.task_ms, -self.run.stage_count, entry)
        if len(self._longest_stages) < MOST_STAGES:
            heapq.heappush(self._longest_stages, item)
        else:
            heapq.heappushpop(self._longest_stages, item)

    def _task_end(self, event: records.TaskEnd) -> None:
        info = event.info
        records.complete_flags(event)
        if event.metrics is not None:
            records.without_negatives(event.metrics)
        self.last_ms = max(self.last_ms, info.finish)
        self._first(info.launch)
        self.task_numbers = max(self.task_numbers, info.id + 1)
        executor = self._executor(info.executor)
        executor.host = executor.host or info.host
        for name, totals in ((None, self.run.totals), (executor.executor, executor.totals)):
            if name not in self._sums:
                self._sums[name] = TaskSums(totals)
            self._sums[name].add(event)
        self._stage(event.stage, event.attempt).add(event)
        merge_peaks(executor.peaks, event.peaks)
        if info.launch and info.finish:
            self._spans.add(info.launch, info.finish)
        if info.failed:
            line = records.reason_text(event.reason)
            _count(self.run.failures, line)
            if line in self.run.failures and len(self.run.failure_texts) < _MOST_TEXTS:
                self.run.failure_texts.setdefault(line, records.whole_text(event.reason))

    def _stage_metrics(self, event: records.StageExecutorMetrics) -> None:
        merge_peaks(self._executor(event.executor).peaks, event.peaks)
        key = (event.stage, event.attempt)
        if (stage := self._stages.get(key) or self._ended.get(key)) is not None:
            stage.add_peaks(event.executor, event.peaks)

    def _update(self, event: records.MetricsUpdate) -> None:
        for update in event.updates:
            merge_peaks(self._executor(event.executor).peaks, update.peaks)


def _done_tasks(totals: TaskTotals) -> int:
    return totals.tasks - totals.failed_tasks - totals.killed_tasks


def _count(lines: dict[str, int], line: str) -> None:
    """Count a line; new ones only up to a limit."""
    if line in lines or len(lines) < _MOST_FAILURES:
        lines[line] = lines.get(line, 0) + 1


_SQL: Final = "org.apache.spark.sql.execution.ui.SparkListener"
#: Event → its struct, and what takes it.
_EVENTS: Final[dict[str, tuple[type[msgspec.Struct], Callable[[EventLogReader, Any], None]]]] = {
    "SparkListenerLogStart": (records.LogStart, EventLogReader._log_start),
    "SparkListenerApplicationStart": (records.ApplicationStart, EventLogReader._application_start),
    "SparkListenerApplicationEnd": (records.Timed, EventLogReader._application_end),
    "SparkListenerEnvironmentUpdate": (records.EnvironmentUpdate, EventLogReader._environment),
    "SparkListenerExecutorAdded": (records.ExecutorAdded, EventLogReader._executor_added),
    "SparkListenerExecutorRemoved": (records.ExecutorRemoved, EventLogReader._executor_removed),
    "SparkListenerStageSubmitted": (records.StageEvent, EventLogReader._stage_submitted),
    "SparkListenerStageCompleted": (records.StageEvent, EventLogReader._stage_completed),
    "SparkListenerJobStart": (records.JobStart, EventLogReader._job_start),
    "SparkListenerJobEnd": (records.JobEnd, EventLogReader._job_end),
    "SparkListenerTaskEnd": (records.TaskEnd, EventLogReader._task_end),
    "SparkListenerStageExecutorMetrics": (
        records.StageExecutorMetrics,
        EventLogReader._stage_metrics,
    ),
    "SparkListenerExecutorMetricsUpdate": (records.MetricsUpdate, EventLogReader._update),
    f"{_SQL}SQLExecutionStart": (
        records.SqlStart,
        lambda reader, event: reader._plans.start(event),
    ),
    f"{_SQL}SQLAdaptiveExecutionUpdate": (
        records.SqlUpdate,
        lambda reader, event: reader._plans.update(event),
    ),
    f"{_SQL}SQLExecutionEnd": (records.SqlEnd, lambda reader, event: reader._plans.end(event)),
    f"{_SQL}DriverAccumUpdates": (
        records.DriverUpdates,
        lambda reader, event: reader._plans.accumulate(event.updates),
    ),
}
_DECODERS: Final = {name: msgspec.json.Decoder(kind) for name, (kind, _) in _EVENTS.items()}


def read_event_log(lines: LogLines, run: RunMetrics | None = None) -> EventLogReader:
    """Read an event log. What is missing of it, or was not understood, is in ``run.notes``.

    Raises DataError (65) where no line is an event.
    """
    reader = EventLogReader() if run is None else EventLogReader(run)
    reader.read(lines)
    if reader.lines and reader.lines == reader.damaged + reader.deep:
        raise DataError(
            "this is not an event log of Spark",
            where=lines.parts[0],
            found=f"{reader.lines:,} lines, none of which is an event",
            next_step="Spark names its logs after the application: application_…, app-… or local-…, or eventlog_v2_…",
        )
    notes = reader.run.notes
    damaged = reader.damaged
    if reader._last_was_damaged:
        damaged -= 1
        notes.append("the last line of the event log is cut; all lines before it were read")
    notes += [f"the event log is cut: {text}" for text in lines.cut]
    notes += [
        f"{name} is what Spark kept when it compacted the event log: jobs that had ended before are left out"
        for name in lines.compacted
    ]
    if reader.incomplete:
        seen, had = (sum(values) for values in zip(*reader.incomplete.values(), strict=True))
        shown = ", ".join(map(str, sorted(reader.incomplete)[:10]))
        notes.append(
            f"{had - seen:,} of {had:,} tasks of stage {shown} are not in the event log, so all sums are too small: "
            "Spark drops events when its queue is full (spark.scheduler.listenerbus.eventqueue.capacity)"
        )
    lost = [
        f"{pluralize(count, kind, plural)} of the event log"
        for count, kind, plural in (
            (reader.open_stages, "stage", ""),
            (len(reader._job_stages), "job", ""),
            (reader._plans.open_count, "query", "queries"),
        )
        if count and reader.ended
    ]
    if lost:
        notes.append(
            f"{' and '.join(lost)} began and did not end: Spark dropped events, or the application stopped meanwhile"
        )
    missing = [
        pluralize(count, kind, plural)
        for count, kind, plural in (
            (reader.missing_jobs, "job", ""),
            (reader.missing_tasks, "task", ""),
            (len(reader.unknown_queries), "query", "queries"),
        )
        # A compacted log has those that its jobs still need.
        if count and not lines.compacted
    ]
    if missing:
        notes.append(
            f"the event log lacks {' and '.join(missing)}, by the numbers of the others, so sums may be too small: "
            "Spark dropped events"
        )
    late = [
        entry.executor
        for entry in reader._executors.values()
        if entry.totals.tasks and entry.added_ms is None
    ]
    if late and reader.begun and not lines.compacted:
        notes.append(
            f"the event log lacks the start of executor {', '.join(late[:10])}: its cores are not known"
        )
    if reader.begun and not reader.has_options:
        notes.append("the event log does not say Spark's options: its defaults are assumed")
    if reader.lines and not reader.begun:
        notes.append(
            "the event log has no begin: its times count from the first task, and its options are not known"
        )
    if resubmitted := reader.run.totals.resubmitted_tasks:
        notes.append(
            f"{resubmitted:,} of {reader.run.totals.failed_tasks:,} failed tasks were only resubmitted: they had done "
            "their work, and lost it with an executor"
        )
    notes += [f"the event log is not whole: {text}" for text in lines.missing]
    notes += [
        f"{name} repeats a part of the event log, and was left out" for name in lines.repeated
    ]
    if reader.deep:
        notes.append(f"{reader.deep:,} plans are nested too deep to be read, and were left out")
    if damaged:
        notes.append(f"{damaged:,} lines of the event log are damaged and were left out")
    if lines.long_lines:
        notes.append(
            f"{lines.long_lines:,} lines of the event log are longer than 16 MB and were left out"
        )
    if not reader.lines and not lines.cut:
        notes.append("the event log is empty: Spark has written nothing yet")
    elif not reader.ended:
        notes.append("the event log has no end: the application runs, or was killed")
    return reader
