"""A library ends the Python worker."""

# finds: python_worker_killed

import os

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("worker_exits").getOrCreate()


def work(batches):
    os._exit(3)
    yield from batches


spark.range(100).mapInArrow(work, "id long").count()
spark.stop()
