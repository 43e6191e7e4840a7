"""A table to broadcast takes longer than spark.sql.broadcastTimeout."""

# finds: broadcast_timeout

import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.appName("broadcast_late")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.broadcastTimeout", "2")
    .getOrCreate()
)


def slow(batches):
    time.sleep(6)
    yield from batches


few = spark.range(10).mapInArrow(slow, "id long")
print(spark.range(1000).join(F.broadcast(few), "id").count())
spark.stop()
