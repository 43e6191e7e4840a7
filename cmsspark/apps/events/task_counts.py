"""How many Spark tasks read some files, parts or entry ranges: by their bytes and the session's cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cmsspark.engines.cores import count_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Bytes that a task reads at least, where all cores have work.
TASK_BYTES: Final = 128 * 1024 * 1024
#: What opening a file costs, in bytes that are read meanwhile.
OPEN_BYTES: Final = 4 * 1024 * 1024


def task_count(spark: SparkSession, items: int, size: int) -> int:
    """Return the number of tasks for ``items`` of ``size`` bytes in all: one for each :data:`TASK_BYTES`, and for each
    core.

    No task is without an item, so there are at most ``items``. A task takes its items one after another.
    """
    weight, cores = size + items * OPEN_BYTES, count_cores(spark)
    # Whole rounds: with three tasks on two cores one core would wait for half of the time.
    rounds = max(1, -(-weight // (TASK_BYTES * cores)))
    return max(1, min(items, rounds * cores))
