"""A Python worker keeps something of each task."""

# finds: python_worker_leak
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("worker_leak").getOrCreate()


def work(rows):
    import json

    json.__dict__.setdefault("_texts", []).append(bytes(b"x" * 25_000_000))
    time.sleep(1.5)
    return rows


print(spark.sparkContext.parallelize(range(1200), 28).mapPartitions(work).count())
spark.stop()
