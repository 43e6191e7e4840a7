"""Findings on stages: uneven, few, tiny or slow tasks, spills and what tasks lacked then,
garbage collection, idle cores.

The thresholds are in ``docs/monitoring.md``, their sources in decision 040.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.findings import named
from cmsspark.apps.monitor.logs.plans import FIXED_PARTITIONS
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.store.run_metrics import Finding, RunMetrics, Spread, StageEntry

MB: Final = 1_000_000
#: ``spark.sql.adaptive.skewJoin.skewedPartitionFactor`` of Spark.
SKEW_FACTOR: Final = 5
SKEW_BYTES: Final = 32 * MB
#: With few tasks, as adaptive execution leaves them, the largest beside the mean of the
#: others: in bytes, and in time.
SKEW_OF_FEW: Final = 4
SKEW_TIME_OF_FEW: Final = 2
#: Adaptive execution joins partitions up to a core's share of the bytes: what is larger by
#: this much is one partition, of which the others are hundreds.
SKEW_OF_JOINED: Final = 1.3
SKEW_TIME_OF_JOINED: Final = 1.25
#: Spark divides input evenly where it can: less than that shows a file that it cannot divide.
SKEW_OF_INPUT: Final = 3
SKEW_TIME_OF_INPUT: Final = 1.5
#: ``spark.sql.adaptive.advisoryPartitionSizeInBytes`` and
#: ``spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes`` of Spark.
ADVISORY_BYTES: Final = 64 << 20
SKEW_JOIN_BYTES: Final = 256 << 20
_SKEW_JOIN: Final = "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes"
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
#: Below this much time of tasks the begin of a JVM is most of it: its heap grows then, and
#: its classes are loaded.
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
MOST_SLOWNESS: Final = 4.0


#: Spark lists many folders by tasks, under this description.
_LISTING: Final = re.compile(r"Listing leaf files|listLeafFiles|parallelListLeafFiles")
_FIRST_ROWS: Final = re.compile(r"(?:showString|show|take|head|first|isEmpty|limit) at ")


def stage_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield the findings of all stages."""
    findings = [finding for stage in metrics.stages for finding in _judge_stage(metrics, stage)]
    yield from findings
    totals = metrics.totals
    # Tasks with more than their memory make garbage, too.
    has_cause = any(finding.code in ("skewed_stage", "spill") for finding in findings)
    is_short = totals.worked_ms < GC_LONG_MS
    most = GC_SHARE_SHORT if is_short or has_cause else GC_SHARE
    if totals.worked_ms >= sizes.GC_LEAST_MS and totals.gc_ms > most * totals.run_ms:
        yield named(
            "gc",
            f"{totals.gc_ms / totals.run_ms:.0%} of the tasks' time was garbage collection{host_load(metrics)}",
            "all stages",
        )
    # Where a stage itself leaves cores idle, that is the cause.
    if not any(finding.code in ("few_tasks", "straggler", "skewed_stage") for finding in findings):
        yield from _idle(metrics)


def host_load(metrics: RunMetrics, stage: StageEntry | None = None) -> str:
    """Return what else this host had to do meanwhile: more processes than cores make
    every time longer. Empty where it was not measured, or was idle.
    """
    begin = (stage.submitted_ms if stage else None) or 0
    end = (stage.completed_ms if stage else None) or sys.maxsize
    loads = [
        sample.host_load
        for sample in metrics.samples
        if sample.host_load is not None and begin <= sample.at_ms <= end
    ]
    cores = metrics.host_cores
    if not loads or not cores or (load := statistics.median(loads)) <= cores:
        return ""
    return f"; the host had a load of {load:.1f} on {pluralize(cores, 'core')}"


def slowness(metrics: RunMetrics) -> float:
    """Return how many times longer all takes because others load the host: its load over
    its cores, at most four.
    """
    loads = [sample.host_load for sample in metrics.samples if sample.host_load is not None]
    if not loads or not metrics.host_cores:
        return 1.0
    return min(MOST_SLOWNESS, max(1.0, statistics.median(loads) / metrics.host_cores))


def stage_name(stage: StageEntry) -> str:
    """Return how a finding names a stage."""
    number = f"stage {stage.stage}{f'.{stage.attempt}' if stage.attempt else ''}"
    query = "" if stage.query is None else f" of SQL {stage.query}"
    return f"{number}{query}, {stage.name}"


def _judge_stage(metrics: RunMetrics, stage: StageEntry) -> Iterator[Finding]:
    if _LISTING.search(stage.name):
        return  # Spark lists folders by tasks of its own
    # A stage that was never submitted, such as one that failed before, has no duration.
    duration, cores = stage.duration_ms or 0, sizes.parallel_tasks(metrics, stage)
    uneven = _skew(metrics, stage) or (_straggler(metrics, stage) if cores > 1 else None)
    if uneven is not None:
        yield uneven
    # What a task with more than its share spills has that cause.
    is_skewed = uneven is not None and uneven.code == "skewed_stage"
    if stage.totals.disk_spilled_bytes >= SPILL_BYTES and not is_skewed:
        totals = stage.totals
        title = f"{volume(totals.disk_spilled_bytes)} spilled to disk ({volume(totals.memory_spilled_bytes)} in memory)"
        memory = "off-heap memory" if sizes.off_heap(metrics.options) else "heap"
        yield named("spill", title, stage_name(stage), memory=memory)
    # A later attempt has only the tasks whose output was lost.
    # show() and take() look at one partition first.
    is_first = stage.task_count == 1 and _FIRST_ROWS.match(stage.name) is not None
    if (
        duration >= FEW_TASKS_MS
        and 0 < stage.task_count < cores
        and not stage.attempt
        and not is_first
    ):
        cpus = sizes.count(metrics.options.get("spark.task.cpus"), 1)
        core_text = f" of {cpus} cores" if cpus > 1 else ""
        title = f"{stage.task_count} tasks{core_text} on {cores * cpus} cores, for {duration / 1000:.0f} s"
        title += host_load(metrics, stage)
        yield named("few_tasks", title, stage_name(stage), cores=cores)
    if (tiny := _tiny(stage, cores, TINY_MS * slowness(metrics))) is not None:
        yield tiny


class Skew(NamedTuple):
    """The largest task of a stage: its bytes (0 if it is known by rows or time), whether
    it read files, and what is said of it.
    """

    size: int
    is_input: bool
    title: str


def find_skew(metrics: RunMetrics, stage: StageEntry) -> Skew | None:
    """Return the task that has much more to do than its fair share."""
    tasks, totals = _finished(stage), stage.totals
    if tasks < 2:
        return None
    times, rows = stage.task_ms, stage.shuffle_read_records
    others_ms = _mean_of_others(totals.task_ms, times, tasks)
    for is_input, kind, spread, total in (
        (False, "read from the shuffle", stage.shuffle_read_bytes, totals.shuffle_read_bytes),
        (True, "of input", stage.input_bytes, totals.input_bytes),
    ):
        if spread.max < SKEW_BYTES:
            continue
        # Where most tasks get nothing, a median or mean of 0 would make everything skewed.
        usual_others = max(_mean_of_others(total, spread, tasks), MB)
        factor, slower = SKEW_OF_FEW, float(SKEW_TIME_OF_FEW)
        if is_input:
            factor, slower = SKEW_OF_INPUT, SKEW_TIME_OF_INPUT
        is_slower = times.max >= max(_ROWS_MS, slower * others_ms)
        is_uneven = spread.max >= factor * usual_others and is_slower
        if is_input or tasks > 3:
            usual = f"the median {volume(spread.median)}"
        else:
            usual = f"its fair share is {volume(total / tasks)}"
            at_once = min(tasks, sizes.parallel_tasks(metrics, stage)) or 1
            is_uneven = is_uneven or (
                _has_joined_partitions(metrics, stage)
                and spread.max >= SKEW_OF_JOINED * total / at_once
                and times.max >= max(_ROWS_MS, SKEW_TIME_OF_JOINED * others_ms)
            )
            # Adaptive execution may be told to fill partitions up to a size: the last
            # one gets the rest then.
            is_uneven = is_uneven and spread.max > 1.1 * _filled_size(metrics)
        if is_uneven or (tasks > 3 and spread.max >= SKEW_FACTOR * max(spread.median, MB)):
            title = f"one task has {volume(spread.max)} {kind}, {usual}{_task(spread)}"
            return Skew(spread.max, is_input, title)
    others_rows = max(_mean_of_others(totals.shuffle_read_records, rows, tasks), _LEAST_ROWS)
    factor = SKEW_ROWS_FACTOR if tasks > 3 else SKEW_OF_FEW
    usual_rows = max(rows.median, _LEAST_ROWS) if tasks > 3 else others_rows
    is_much_slower = times.max >= _ROWS_MS and times.max >= (
        SKEW_FACTOR * times.median if tasks > 3 else SKEW_OF_FEW * others_ms
    )
    if rows.max >= SKEW_ROWS and rows.max >= factor * usual_rows and is_much_slower:
        title = f"one task has {rows.max:,} rows of the shuffle, the median {rows.median:,}{_task(rows)}"
        return Skew(0, False, title)
    is_slow = times.max >= SLOW_MS and times.max >= SKEW_FACTOR * max(times.median, 1000)
    if tasks > 3 and _has_more(stage) and is_slow:
        title = f"one task ran {times.max / 1000:.0f} s, the median {times.median / 1000:.1f} s{_task(times)}"
        reads_shuffle = stage.shuffle_read_bytes.max >= stage.input_bytes.max
        return Skew(0, not reads_shuffle, title)
    return None


def _mean_of_others(total: int, spread: Spread, tasks: int) -> float:
    """Return the mean of all tasks but the largest; that one, if the sum is not known."""
    return (total - spread.max) / (tasks - 1) if total > spread.max else float(spread.max)


def _has_joined_partitions(metrics: RunMetrics, stage: StageEntry) -> bool:
    """Return whether adaptive execution made a stage's tasks of more partitions."""
    is_joined = stage.query is not None and stage.task_count < sizes.shuffle_partitions(
        metrics.options
    )
    return is_joined and sizes.is_adaptive(metrics.options)


def _filled_size(metrics: RunMetrics) -> int:
    """Return the size to which adaptive execution fills partitions; 0 where it makes as
    many as there are cores.
    """
    adaptive = "spark.sql.adaptive."
    option = metrics.options.get(f"{adaptive}coalescePartitions.parallelismFirst", "true")
    if option.strip().lower() != "false":
        return 0
    return (
        sizes.size(metrics.options.get(f"{adaptive}advisoryPartitionSizeInBytes"))
        or ADVISORY_BYTES
    )


def _skew(metrics: RunMetrics, stage: StageEntry) -> Finding | None:
    skew = find_skew(metrics, stage)
    if skew is None:
        return None
    if skew.is_input:
        return named("skewed_stage.input", skew.title, stage_name(stage))
    _, join = skew_join_cure(metrics, stage, skew)
    return named("skewed_stage", skew.title, stage_name(stage), join=join)


def skew_join_cure(
    metrics: RunMetrics, stage: StageEntry, skew: Skew
) -> tuple[dict[str, str], str]:
    """Return the options that make adaptive execution divide the partition of a join, and
    what to say; no options where none would.

    It divides a partition that is larger than a limit and than so many medians: among few
    partitions none is.
    """
    option, parts = _SKEW_JOIN, sizes.shuffle_partitions(metrics.options)
    if not stage.is_join:
        return {}, ""
    if not sizes.is_adaptive(metrics.options):
        return {}, "; spark.sql.adaptive.enabled=true divides the partitions of joins"
    limit = sizes.size(metrics.options.get(option)) or SKEW_JOIN_BYTES
    options = {}
    if 0 < skew.size < limit:
        options[option] = sizes.as_option(skew.size // 2, 1 << 20)
    usual_bytes = stage.totals.shuffle_read_bytes - skew.size
    # Twice as many as would do if all others were alike.
    least = 1 + -(-2 * SKEW_FACTOR * usual_bytes // skew.size) if skew.size else 0
    if parts < least:
        cores = max(1, sizes.parallel_tasks(metrics))
        options[sizes.PARTITIONS_OPTION] = str(-(-least // cores) * cores)
    if options:
        texts = " and ".join(f"{name}={value}" for name, value in options.items())
        return (
            options,
            f"; {texts} divide it (now above {volume(limit)} and {SKEW_FACTOR} medians of {parts} partitions)",
        )
    return (
        {},
        "; adaptive execution divides only the side of a join that is not outer, without a shuffle after it",
    )


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


def _straggler(metrics: RunMetrics, stage: StageEntry) -> Finding | None:
    times = stage.task_ms
    is_long = times.max >= SLOW_MS and times.max >= STRAGGLER_FACTOR * max(times.median, 1)
    # The first tasks of an executor start Python and compile code: several take long
    # then, not one.
    second = times.max if stage.second_task_ms is None else stage.second_task_ms
    is_long = is_long and times.max >= ALONE_FACTOR * second and _finished(stage) >= 4
    if not is_long or _has_more(stage) or times.max < _STRAGGLER_SHARE * (stage.duration_ms or 0):
        return None
    title = f"one task ran {times.max / 1000:.0f} s, the median {times.median / 1000:.1f} s, with as much data"
    title += _task(times) + host_load(metrics, stage)
    return named("straggler", title, stage_name(stage))


def _tiny(stage: StageEntry, cores: int, most_ms: float) -> Finding | None:
    reads = (stage.shuffle_read_bytes, stage.input_bytes)
    is_little = stage.task_ms.median < most_ms and all(spread.median < MB for spread in reads)
    if (
        stage.task_count < max(TINY_TASKS, _TINY_ROUNDS * cores)
        or stage.totals.tasks < TINY_TASKS
        or not is_little
    ):
        return None
    title = f"{stage.task_count:,} tasks of {stage.task_ms.median} ms (median)"
    if stage.duration_ms:
        title += f", for {stage.duration_ms / 1000:.0f} s"
    return named("tiny_tasks", title, stage_name(stage))


def is_interactive(metrics: RunMetrics) -> bool:
    """Return whether somebody typed what ran: in a shell of Spark, or a notebook."""
    return bool(_SHELL.search(metrics.application_name))


#: Names that shells and notebooks give.
_SHELL: Final = re.compile(
    r"(?i:pyspark.?shell)|^Spark ?shell$|SparkSQL::|Zeppelin|livy-session|[Jj]upyter|cmsspark notebook"
)


def _idle(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield that cores had no task, from the first task of the run to the last one."""
    # Between the lines that somebody types nothing runs; on a host that others load, a run
    # waits for its cores.
    is_explained = is_interactive(metrics) or host_load(metrics)
    if not metrics.task_spans or metrics.engine != "spark" or is_explained:
        return
    first, last = metrics.task_spans[0][0], max(end for _, end in metrics.task_spans)
    present = 0
    for entry in metrics.executors:
        begin = max(first, entry.added_ms or first)
        present += entry.cores * max(0, min(last, entry.removed_ms or last) - begin)
    idle = present - metrics.totals.task_ms * sizes.count(
        metrics.options.get("spark.task.cpus"), 1
    )
    if last - first < IDLE_LEAST_MS or idle < IDLE_CORE_MS or idle < IDLE_SHARE * present:
        return
    waits = last - first - sum(end - begin for begin, end in metrics.task_spans)
    title = f"cores were idle for {idle / present:.0%} of their time ({idle / 1000:,.0f} of {present / 1000:,.0f} s)"
    if waits > idle / 2 / max(1, present // max(1, last - first)):
        title += f"; no task ran for {waits / 1000:.0f} s, while the driver did something else"
    yield named("idle_cores", title, "all stages")


#: The arrays of a sort double when they grow, and the largest task has more than the average.
HEADROOM: Final = 1.5
MOST_PARTITIONS: Final = 100_000
#: ``spark.sql.adaptive.coalescePartitions.minPartitionSize``: Spark makes no smaller ones.
LEAST_PARTITION: Final = sizes.MIB
MOST_GROWTH: Final = 4
#: A task that spilled needs at least so many times what it had.
LEAST_GROWTH: Final = 1.25


class SpillCure(msgspec.Struct, frozen=True):
    """The worst stage that spilled: bytes that a task needs and had. Either partitions,
    or a heap, are the cure.

    ``partition_bytes``: what adaptive execution makes of them, where it joined small ones.
    """

    stage: StageEntry
    need: int
    room: int
    partitions: int | None = None
    partition_bytes: int | None = None
    heap: int | None = None
    off_heap: int | None = None

    def __str__(self) -> str:
        """Say what a task lacked."""
        needs = f"needs {volume(self.need)} and had {volume(self.room)}"
        return f"a task of stage {self.stage.stage} {needs}"


def spill_cure(runs: Sequence[RunMetrics], role: str) -> SpillCure | None:
    """Return the cure for the stage whose tasks lacked most; None where no stage that
    spilled is known.
    """
    cures = [cure for run in runs for cure in _cures(run, role)]
    if not cures:
        return None
    fixed = [cure for cure in cures if cure.heap is not None or cure.off_heap is not None]
    # A heap that is large enough for a stage of fixed tasks serves the others, too.
    return max(fixed or cures, key=lambda cure: cure.need / max(1, cure.room))


def _cures(run: RunMetrics, role: str) -> Iterator[SpillCure]:
    heap, fraction = sizes.heap(run.options, role), _memory_fraction(run)
    slots, off_heap = tasks_at_once(run, role), sizes.off_heap(run.options)
    room = task_memory(run, role)
    for stage in run.stages:
        totals, tasks = stage.totals, stage.totals.tasks - stage.totals.failed_tasks
        if totals.disk_spilled_bytes < SPILL_BYTES or tasks <= 0 or find_skew(run, stage):
            continue
        need = int(HEADROOM * (totals.memory_spilled_bytes / tasks)) + totals.peak_execution_bytes
        # Where few of many tasks spilled the average is small, but these needed more
        # than they had.
        need = max(need, int(LEAST_GROWTH * room))
        total = need * tasks
        if off_heap:
            yield SpillCure(stage, need, room, off_heap=need * slots)
        elif _has_set_partitions(run, stage) and room > 0:
            partitions = min(MOST_PARTITIONS, -(-total // room))
            partitions = -(-partitions // slots) * slots
            size = (
                max(LEAST_PARTITION, totals.shuffle_read_bytes // partitions)
                if sizes.is_adaptive(run.options)
                else None
            )
            yield SpillCure(stage, need, room, partitions, size)
        else:
            goal = int(need * slots / fraction) + sizes.RESERVED
            yield SpillCure(stage, need, room, heap=min(max(goal, heap), MOST_GROWTH * heap))


def _memory_fraction(run: RunMetrics) -> float:
    fraction = sizes.share(run.options.get("spark.memory.fraction"), sizes.FRACTION)
    return fraction or sizes.FRACTION


def task_memory(run: RunMetrics, role: str) -> int:
    """Return the bytes that a task has: with off-heap memory on it executes there."""
    slots, heap = tasks_at_once(run, role), sizes.heap(run.options, role)
    in_heap = int(max(0, heap - sizes.RESERVED) * _memory_fraction(run) / slots)
    return sizes.off_heap(run.options) // slots or in_heap


def tasks_at_once(run: RunMetrics, role: str) -> int:
    """Return how many tasks share the memory of an executor."""
    cores = max(
        (
            entry.cores
            for entry in run.executors
            if (entry.executor == "driver") == (role == "driver")
        ),
        default=1,
    )
    return max(1, cores // sizes.count(run.options.get("spark.task.cpus"), 1))


def _has_set_partitions(run: RunMetrics, stage: StageEntry) -> bool:
    """Return whether ``spark.sql.shuffle.partitions`` decides how many tasks a stage has."""
    if not stage.totals.shuffle_read_bytes:
        return False
    fixed = {
        value
        for query in run.queries
        for kind, _, value in query.nodes
        if kind == FIXED_PARTITIONS
    }
    if stage.task_count in fixed:
        return False
    number = sizes.shuffle_partitions(run.options)
    return stage.task_count == number or (
        sizes.is_adaptive(run.options) and stage.task_count < number
    )
