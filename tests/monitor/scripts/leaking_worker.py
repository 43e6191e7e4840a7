"""Python workers that keep something of each task for ever."""

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("leaking").getOrCreate()


def count(rows):
    import json

    kept = json.__dict__.setdefault("_kept", [])
    kept.append(bytes(b"x" * 20_000_000))
    time.sleep(0.6)
    yield sum(1 for _ in rows)


print(spark.sparkContext.parallelize(range(6_000), 60).mapPartitions(count).sum())
spark.stop()
