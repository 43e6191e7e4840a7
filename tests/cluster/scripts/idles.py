"""Work, idleness until all executors are gone, and work again on what they have shuffled."""

from __future__ import annotations

import sys
import time
from operator import add

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
context = spark.sparkContext
sums = (
    context.parallelize(range(1000), 4)
    .map(lambda number: (number % 7, number))
    .reduceByKey(add, 3)
)
groups = sums.count()
end = time.monotonic() + 90
while context._jsc.sc().getExecutorMemoryStatus().size() > 1:
    assert time.monotonic() < end, "executors that idle for a second are still there"
    time.sleep(0.5)
total = sum(value for _, value in sums.collect())
tracker = context.statusTracker()
stages = {
    stage for job in tracker.getJobIdsForGroup() for stage in tracker.getJobInfo(job).stageIds
}
tasks = sum(info.numCompletedTasks for stage in stages if (info := tracker.getStageInfo(stage)))
sys.stdout.write(f"{groups} groups, no executor, then {total} by {tasks} tasks\n")
