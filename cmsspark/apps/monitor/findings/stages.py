"""Findings on stages: uneven, few, tiny or slow tasks, spills, garbage collection, idle cores.

The thresholds and where they come from are in ``docs/monitoring.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.memory_sizes import count, parallel_tasks
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics, Spread, StageEntry

MB: Final = 1_000_000
#: ``spark.sql.adaptive.skewJoin.skewedPartitionFactor`` of Spark.
SKEW_FACTOR: Final = 5
SKEW_BYTES: Final = 32 * MB
#: Rows that compress well are few bytes: so many rows, and so many times the median,
#: with the time to show for it.
SKEW_ROWS: Final = 500_000
SKEW_ROWS_FACTOR: Final = 10
_LEAST_ROWS: Final = 10_000
_ROWS_MS: Final = 1_000
#: DataFlint looks at tasks from 5 s on, and calls 10 times the median skewed, whatever was read.
SLOW_MS: Final = 5_000
STRAGGLER_FACTOR: Final = 10
ALONE_FACTOR: Final = 2
#: With this much of the time of its stage a task is what the stage waited for.
_STRAGGLER_SHARE: Final = 0.5
SPILL_BYTES: Final = MB
#: Dr. Elephant: moderate from 10 %.
GC_SHARE: Final = 0.10
#: Below this much time of tasks a share of it is noise, and below the second one the
#: begin of a JVM is most of it: its heap grows then, and its classes are loaded.
GC_LEAST_MS: Final = 20_000
GC_LONG_MS: Final = 60_000
GC_SHARE_SHORT: Final = 0.25
FEW_TASKS_MS: Final = 30_000
#: Spark's tuning guide: tasks of 200 ms are still efficient. DataFlint: 5,000 tasks below 500 ms.
TINY_MS: Final = 200
TINY_TASKS: Final = 500
_TINY_ROUNDS: Final = 10
#: DataFlint: more than half of the cores' time.
IDLE_SHARE: Final = 0.5
IDLE_CORE_MS: Final = 60_000
IDLE_LEAST_MS: Final = 30_000


def stage_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield the findings of all stages."""
    findings = [finding for stage in metrics.stages for finding in _judge_stage(metrics, stage)]
    yield from findings
    totals = metrics.totals
    most = GC_SHARE if totals.run_ms >= GC_LONG_MS else GC_SHARE_SHORT
    if totals.run_ms >= GC_LEAST_MS and totals.gc_ms > most * totals.run_ms:
        yield Finding(
            "gc",
            f"{totals.gc_ms / totals.run_ms:.0%} of the tasks' time was garbage collection",
            "all stages",
            "more heap for an executor (cmsspark lab advise), fewer cores in it, or columns instead of rows of objects",
        )
    # Where a stage itself leaves cores idle, that is the cause.
    if not any(finding.code in ("few_tasks", "straggler", "skewed_stage") for finding in findings):
        yield from _idle(metrics)


def stage_name(stage: StageEntry) -> str:
    """Return how a finding names a stage."""
    return f"stage {stage.stage}{f'.{stage.attempt}' if stage.attempt else ''}, {stage.name}"


def _judge_stage(metrics: RunMetrics, stage: StageEntry) -> Iterator[Finding]:
    # A stage that was never submitted, such as one that failed before, has no duration.
    duration, cores = stage.duration_ms or 0, parallel_tasks(metrics, stage)
    uneven = _skew(stage) or (_straggler(stage) if cores > 1 else None)
    if uneven is not None:
        yield uneven
    if stage.totals.disk_spilled_bytes >= SPILL_BYTES:
        yield _spill(stage)
    # A later attempt has only the tasks whose output was lost.
    if duration >= FEW_TASKS_MS and 0 < stage.task_count < cores and not stage.attempt:
        cpus = count(metrics.options.get("spark.task.cpus"), 1)
        size = f" of {cpus} cores" if cpus > 1 else ""
        title = (
            f"{stage.task_count} tasks{size} on {cores * cpus} cores, for {duration / 1000:.0f} s"
        )
        cure = f"repartition({cores} or more) before it, or a larger spark.sql.shuffle.partitions / minPartitions"
        yield Finding("few_tasks", title, stage_name(stage), cure)
    if (tiny := _tiny(stage, cores)) is not None:
        yield tiny


def _skew(stage: StageEntry) -> Finding | None:
    if _finished(stage) < 4:
        return None
    cure = "spread the key (salt it, or aggregate in two steps); spark.sql.adaptive.skewJoin.enabled splits joins"
    for kind, spread in (
        ("read from the shuffle", stage.shuffle_read_bytes),
        ("of input", stage.input_bytes),
    ):
        # Where most tasks get nothing, a median of 0 would make everything skewed.
        if spread.max >= SKEW_BYTES and spread.max >= SKEW_FACTOR * max(spread.median, MB):
            title = f"one task has {volume(spread.max)} {kind}, the median {volume(spread.median)}"
            return Finding("skewed_stage", f"{title}{_task(spread)}", stage_name(stage), cure)
    times, rows = stage.task_ms, stage.shuffle_read_records
    is_slower = times.max >= _ROWS_MS and times.max >= SKEW_FACTOR * times.median
    if (
        rows.max >= SKEW_ROWS
        and rows.max >= SKEW_ROWS_FACTOR * max(rows.median, _LEAST_ROWS)
        and is_slower
    ):
        title = f"one task has {rows.max:,} rows of the shuffle, the median {rows.median:,}{_task(rows)}"
        return Finding("skewed_stage", title, stage_name(stage), cure)
    if (
        _has_more(stage)
        and times.max >= SLOW_MS
        and times.max >= SKEW_FACTOR * max(times.median, 1000)
    ):
        title = f"one task ran {times.max / 1000:.0f} s, the median {times.median / 1000:.1f} s{_task(times)}"
        return Finding("skewed_stage", title, stage_name(stage), cure)
    return None


def _finished(stage: StageEntry) -> int:
    """Return how many tasks did their work: those that the spreads are of."""
    return stage.totals.tasks - stage.totals.failed_tasks - stage.totals.killed_tasks


def _task(spread: Spread) -> str:
    """Return which task has the largest value, in brackets; nothing where that is not known."""
    return "" if spread.task is None else f" (task {spread.task} on {spread.host})"


def _has_more(stage: StageEntry) -> bool:
    """Return whether a task read more than the others: on a busy host one may take long
    for nothing.
    """
    spreads = (stage.shuffle_read_bytes, stage.input_bytes)
    return any(spread.max >= MB and spread.max >= 2 * spread.median for spread in spreads)


def _straggler(stage: StageEntry) -> Finding | None:
    times = stage.task_ms
    is_long = times.max >= SLOW_MS and times.max >= STRAGGLER_FACTOR * max(times.median, 1)
    # The first tasks of an executor start Python and compile code: several take long
    # then, not one.
    second = times.max if stage.second_task_ms is None else stage.second_task_ms
    is_long = is_long and times.max >= ALONE_FACTOR * second and _finished(stage) >= 4
    if not is_long or _has_more(stage) or times.max < _STRAGGLER_SHARE * (stage.duration_ms or 0):
        return None
    title = f"one task ran {times.max / 1000:.0f} s, the median {times.median / 1000:.1f} s, with as much data"
    cure = "look for a record of that task that is expensive, or a slow host (then: spark.speculation=true)"
    return Finding("straggler", f"{title}{_task(times)}", stage_name(stage), cure)


def _spill(stage: StageEntry) -> Finding:
    totals = stage.totals
    title = f"{volume(totals.disk_spilled_bytes)} spilled to disk ({volume(totals.memory_spilled_bytes)} in memory)"
    cure = "cmsspark lab advise has the partitions and the heap that it takes; or fewer cores in an executor"
    return Finding("spill", title, stage_name(stage), cure)


def _tiny(stage: StageEntry, cores: int) -> Finding | None:
    reads = (stage.shuffle_read_bytes, stage.input_bytes)
    is_little = stage.task_ms.median < TINY_MS and all(spread.median < MB for spread in reads)
    if (
        stage.task_count < max(TINY_TASKS, _TINY_ROUNDS * cores)
        or stage.totals.tasks < TINY_TASKS
        or not is_little
    ):
        return None
    title = f"{stage.task_count:,} tasks of {stage.task_ms.median} ms (median)"
    if stage.duration_ms:
        title += f", for {stage.duration_ms / 1000:.0f} s"
    cure = "fewer partitions: coalesce(n), a smaller spark.sql.shuffle.partitions, or spark.sql.adaptive.enabled=true"
    return Finding("tiny_tasks", title, stage_name(stage), cure)


def _idle(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield that cores had no task, from the first task of the run to the last one."""
    if not metrics.task_spans or metrics.engine != "spark":
        return
    first, last = metrics.task_spans[0][0], max(end for _, end in metrics.task_spans)
    present = 0
    for entry in metrics.executors:
        begin = max(first, entry.added_ms or first)
        present += entry.cores * max(0, min(last, entry.removed_ms or last) - begin)
    idle = present - metrics.totals.task_ms * count(metrics.options.get("spark.task.cpus"), 1)
    if last - first < IDLE_LEAST_MS or idle < IDLE_CORE_MS or idle < IDLE_SHARE * present:
        return
    waits = last - first - sum(end - begin for begin, end in metrics.task_spans)
    title = f"cores were idle for {idle / present:.0%} of their time ({idle / 1000:,.0f} of {present / 1000:,.0f} s)"
    if waits > idle / 2 / max(1, present // max(1, last - first)):
        title += f"; no task ran for {waits / 1000:.0f} s, while the driver did something else"
    cure = "fewer cores or executors, dynamic allocation, or the driver's own work before or after Spark's"
    yield Finding("idle_cores", title, "all stages", cure)
