"""Stages, sums, spreads and spans of tasks while an event log is read, in memory that
does not grow with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from cmsspark.apps.monitor.event_records import StageInfo, TaskEnd
from cmsspark.store.run_metrics import Spread, StageEntry, TaskTotals

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
        _add_task(self.totals, event)
        if (metrics := event.metrics) is not None:
            self._cpu_ns += metrics.cpu_ns
            self.totals.cpu_ms = self._cpu_ns // 1_000_000
            if metrics.shuffle_write is not None:
                self._shuffle_write_ns += metrics.shuffle_write.ns
                self.totals.shuffle_write_ms = self._shuffle_write_ns // 1_000_000


def _add_task(totals: TaskTotals, event: TaskEnd) -> None:
    info, metrics = event.info, event.metrics
    totals.tasks += 1
    totals.failed_tasks += info.failed
    totals.killed_tasks += info.killed
    totals.speculative_tasks += info.speculative
    # The time of a task whose output was lost was added when it ended first.
    if event.reason.reason != "Resubmitted":
        totals.task_ms += max(0, info.finish - info.launch)
    if metrics is None:
        return
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
    if metrics.input is not None:
        totals.input_bytes += metrics.input.bytes
        totals.input_records += metrics.input.records
    if metrics.output is not None:
        totals.output_bytes += metrics.output.bytes
        totals.output_records += metrics.output.records


class OpenStage:
    """An attempt of a stage whose tasks still end."""

    def __init__(self, stage: int, attempt: int) -> None:
        self.entry = StageEntry(stage, attempt)
        self._sums = TaskSums(self.entry.totals)
        self._task_ms, self._shuffle_read, self._input = (
            QuantileSketch(),
            QuantileSketch(),
            QuantileSketch(),
        )
        self._records = QuantileSketch()
        self._longest_ms = 0
        self._peaks: dict[str, dict[str, int]] = {}

    def describe(self, info: StageInfo) -> None:
        """Take Spark's description of the stage, at its begin or end."""
        entry = self.entry
        entry.name, entry.task_count = info.name[:200], info.tasks
        entry.submitted_ms = info.submitted if info.submitted is not None else entry.submitted_ms
        entry.completed_ms = info.completed
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
        sketches = (self._task_ms, self._shuffle_read, self._records, self._input)
        for sketch, value in zip(sketches, (duration, read, records, size), strict=True):
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
        entry = self.entry
        entry.task_ms, entry.shuffle_read_bytes = (
            self._task_ms.spread(),
            self._shuffle_read.spread(),
        )
        entry.shuffle_read_records = self._records.spread()
        entry.input_bytes, entry.peaks = self._input.spread(), self._with_most_memory()
        return entry


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
        return Spread(self._min, self._median(), self._max, self._task, self._host)

    def _median(self) -> int:
        remaining = (self._count + 1) // 2
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining <= 0:
                middle = round(math.exp((bucket - 0.5) * _LOG)) if bucket else 0
                return min(max(middle, self._min or 0), self._max)
        return self._max


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
