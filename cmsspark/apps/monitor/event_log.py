"""Reads an event log of Spark, 3.5 or 4.x, line by line into a ``RunMetrics``, in
memory that does not grow with it.

Kept are sums, sketches of the tasks of open stages, the 1,000 stages with the most task
time, and peaks by executor. Lines that are no events are counted; a last line that is
cut is no fault of the log.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cmsspark.apps.monitor import event_records as records
from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.event_log_files import LogLines
from cmsspark.apps.monitor.event_plans import Plans, Rdds
from cmsspark.apps.monitor.event_stages import OpenStage, Spans, TaskSums, merge_peaks
from cmsspark.base.errors import DataError
from cmsspark.store.run_metrics import ExecutorEntry, RunMetrics, StageEntry

MOST_STAGES: Final = 1000
_LONGEST_LENIENT: Final = 1 << 20
#: Stages that ended whose tasks may still end: killed copies of tasks do so later.
_MOST_ENDED: Final = 200
_MOST_FAILURES: Final = 50
#: Failures of tasks of which the whole text is kept.
_MOST_TEXTS: Final = 10
_LONGEST_FAILURE: Final = 500
_NAME: Final = re.compile(rb'\{"Event":"([\w.]+)"')


@dataclass
class EventLogReader:
    """Takes the lines of one event log; ``metrics`` gives the result at any time."""

    run: RunMetrics = field(default_factory=lambda: RunMetrics("", "", "spark", 0))
    lines: int = 0
    damaged: int = 0
    skipped: int = 0
    #: Lines with a plan that is nested deeper than can be read.
    deep: int = 0
    last_ms: int = 0
    ended: bool = False
    #: Which run of run_spark wrote the log: a system property or, where the driver is
    #: on another host, an option.
    measured_run: str | None = None
    _last_was_damaged: bool = False
    _stages: dict[tuple[int, int], OpenStage] = field(default_factory=dict)
    _ended: dict[tuple[int, int], OpenStage] = field(default_factory=dict)
    _longest_stages: list[tuple[int, int, StageEntry]] = field(default_factory=list)
    _executors: dict[str, ExecutorEntry] = field(default_factory=dict)
    #: By executor; None for those of the run.
    _sums: dict[str | None, TaskSums] = field(default_factory=dict)
    _users: dict[int, str] = field(default_factory=dict)
    _job_stages: dict[int, list[int]] = field(default_factory=dict)
    _plans: Plans = field(default_factory=Plans)
    _rdds: Rdds = field(default_factory=Rdds)
    _spans: Spans = field(default_factory=Spans)

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
            event = _decoded(name, line)
        except RecursionError:
            self.deep += 1
            return
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.damaged += 1
            self._last_was_damaged = True
            return
        _EVENTS[name][1](self, event)

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
        run.queries, run.rdd_hints = self._plans.queries(), self._rdds.hints()
        run.task_spans = self._spans.merged()
        run.sources = [*dict.fromkeys([*run.sources, "events"])]
        if run.ended_ms is None and self.last_ms:
            run.ended_ms = self.last_ms
        return run

    # One method for each event.

    def _log_start(self, event: records.LogStart) -> None:
        self.run.spark_version = event.version

    def _application_start(self, event: records.ApplicationStart) -> None:
        self.run.application, self.run.application_name = event.id, event.name
        self.run.began_ms = self.run.began_ms or event.at

    def _application_end(self, event: records.Timed) -> None:
        self.run.ended_ms, self.ended = event.at, True

    def _environment(self, event: records.EnvironmentUpdate) -> None:
        options = {
            name: value for name, value in event.spark.items() if sizes.KEPT.fullmatch(name)
        }
        self.run.options.update(options)
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
        execution = (event.properties or {}).get("spark.sql.execution.id")
        user = f"sql {execution}" if execution is not None else f"job {event.job}"
        self._job_stages[event.job] = event.stages
        for stage in event.stages:
            self._users[stage] = user

    def _job_end(self, event: records.JobEnd) -> None:
        self.run.failed_jobs += event.result.result not in ("", "JobSucceeded")
        for stage in self._job_stages.pop(event.job, ()):
            self._users.pop(stage, None)

    def _stage_submitted(self, event: records.StageEvent) -> None:
        info = event.info
        # The ids of a second context in one log begin again.
        if (ended := self._ended.pop((info.stage, info.attempt), None)) is not None:
            ended.closed()
        self._stage(info.stage, info.attempt).describe(info)

    def _stage_completed(self, event: records.StageEvent) -> None:
        info = event.info
        stage = self._stages.pop((info.stage, info.attempt), None) or OpenStage(
            info.stage, info.attempt
        )
        stage.describe(info)
        self.last_ms = max(self.last_ms, info.completed or 0)
        if info.failure:
            _count(self.run.stage_failures, " ".join(info.failure[:_LONGEST_FAILURE].split()))
        self._plans.accumulate(
            ((entry.id, entry.value) for entry in info.accumulables), info.tasks
        )
        user = self._users.get(info.stage, f"stage {info.stage}")
        self._rdds.completed(info, user, stage.entry.totals.shuffle_write_bytes)
        self._keep(stage)
        self._ended[info.stage, info.attempt] = stage
        if len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended))).closed()

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
            self._failure(event.reason)

    def _failure(self, reason: records.EndReason) -> None:
        line = records.reason_text(reason)
        _count(self.run.failures, line)
        if line in self.run.failures and len(self.run.failure_texts) < _MOST_TEXTS:
            self.run.failure_texts.setdefault(line, records.whole_text(reason))

    def _stage_metrics(self, event: records.StageExecutorMetrics) -> None:
        merge_peaks(self._executor(event.executor).peaks, event.peaks)
        key = (event.stage, event.attempt)
        if (stage := self._stages.get(key) or self._ended.get(key)) is not None:
            stage.add_peaks(event.executor, event.peaks)

    def _update(self, event: records.MetricsUpdate) -> None:
        for update in event.updates:
            merge_peaks(self._executor(event.executor).peaks, update.peaks)


def _count(lines: dict[str, int], line: str) -> None:
    """Count a line; new ones only up to a limit."""
    if line in lines or len(lines) < _MOST_FAILURES:
        lines[line] = lines.get(line, 0) + 1


def _decoded(name: str, line: bytes) -> Any:
    try:
        return _DECODERS[name].decode(line)
    except msgspec.ValidationError:
        # As Python objects a line takes many times its size.
        if len(line) > _LONGEST_LENIENT:
            raise
        return records.decode_leniently(_EVENTS[name][0], line)


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
            "an event log of Spark is not installed",
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
    if not reader.lines:
        notes.append("the event log is empty: Spark has written nothing yet")
    elif not reader.ended:
        notes.append("the event log has no end: the application runs, or was killed")
    return reader
