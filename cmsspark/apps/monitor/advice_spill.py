"""How much memory tasks that spilled need, and what gives it to them: more partitions,
or else more heap.

A task had ``(heap − 300 MB) × spark.memory.fraction / tasks at once``; it needs what it
held at most and what it spilled. Partitions cost nothing, so they come first; the heap
grows only for stages whose number of tasks is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.event_plans import FIXED_PARTITIONS
from cmsspark.apps.monitor.findings_stages import SPILL_BYTES
from cmsspark.apps.monitor.memory_sizes import MIB
from cmsspark.store.run_metrics import RunMetrics, StageEntry

#: The arrays of a sort double when they grow, and the largest task has more than the average.
HEADROOM: Final = 1.5
#: Spark's default number of partitions of a shuffle.
PARTITIONS: Final = 200
MOST_PARTITIONS: Final = 100_000
#: ``spark.sql.adaptive.coalescePartitions.minPartitionSize``: Spark makes no smaller ones.
LEAST_PARTITION: Final = MIB
MOST_GROWTH: Final = 4
#: A task that spilled needs at least so many times what it had.
LEAST_GROWTH: Final = 1.25


class SpillCure(Struct, frozen=True):
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


def spill_cure(runs: Sequence[RunMetrics], role: str) -> SpillCure | None:
    """Return the cure for the stage whose tasks lacked most; None where no stage that
    spilled is known.
    """
    cures = [cure for run in runs for cure in _cures(run, role)]
    if not cures:
        return None
    fixed = [cure for cure in cures if cure.heap is not None]
    # A heap that is large enough for a stage of fixed tasks serves the others, too.
    return max(fixed or cures, key=lambda cure: cure.need / max(1, cure.room))


def _cures(run: RunMetrics, role: str) -> Iterator[SpillCure]:
    heap = sizes.heap(run.options, role)
    fraction = (
        sizes.share(run.options.get("spark.memory.fraction"), sizes.FRACTION) or sizes.FRACTION
    )
    slots = _tasks_at_once(run, role)
    room = int(max(0, heap - sizes.RESERVED) * fraction / slots)
    for stage in run.stages:
        totals, tasks = stage.totals, stage.totals.tasks - stage.totals.failed_tasks
        if totals.disk_spilled_bytes < SPILL_BYTES or tasks <= 0:
            continue
        need = int(HEADROOM * (totals.memory_spilled_bytes / tasks)) + totals.peak_execution_bytes
        # Where few of many tasks spilled the average is small, but these needed more
        # than they had.
        need = max(need, int(LEAST_GROWTH * room))
        total = need * tasks
        if _has_set_partitions(run, stage) and room > 0:
            partitions = min(MOST_PARTITIONS, -(-total // room))
            partitions = -(-partitions // slots) * slots
            size = (
                max(LEAST_PARTITION, totals.shuffle_read_bytes // partitions)
                if _is_adaptive(run)
                else None
            )
            yield SpillCure(stage, need, room, partitions, size)
        else:
            goal = int(need * slots / fraction) + sizes.RESERVED
            yield SpillCure(stage, need, room, heap=min(max(goal, heap), MOST_GROWTH * heap))


def _tasks_at_once(run: RunMetrics, role: str) -> int:
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
    number = shuffle_partitions(run)
    return stage.task_count == number or (_is_adaptive(run) and stage.task_count < number)


def shuffle_partitions(run: RunMetrics) -> int:
    """Return ``spark.sql.shuffle.partitions`` of a run."""
    return sizes.count(run.options.get("spark.sql.shuffle.partitions"), PARTITIONS)


def _is_adaptive(run: RunMetrics) -> bool:
    return run.options.get("spark.sql.adaptive.enabled", "true").strip().lower() != "false"
