"""A Python worker that keeps something of each task for ever. Each task lasts until a
sample has seen what it kept.
"""

import os

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("leaking").getOrCreate()


def count(rows):
    import json

    from tests.apps.monitor.sampled import until_sampled

    kept = json.__dict__.setdefault("_kept", [])
    kept.append(bytes(b"x" * 20_000_000))
    until_sampled(lambda sample: sample.get("largest_worker") == os.getpid())
    yield sum(1 for _ in rows)


# Samples are a second apart: so many tasks last longer than the rule wants to see.
print(spark.sparkContext.parallelize(range(1_200), 12).mapPartitions(count).sum())
spark.stop()
