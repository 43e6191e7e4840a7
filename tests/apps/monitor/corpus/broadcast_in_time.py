"""A table to broadcast takes its time."""

# finds: nothing

import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.appName("broadcast_in_time")
spark = builder.config("spark.sql.adaptive.enabled", "false").getOrCreate()


def slow(batches):
    time.sleep(2)
    yield from batches


few = spark.range(10).mapInArrow(slow, "id long")
print(spark.range(1000).join(F.broadcast(few), "id").count())
spark.stop()
