"""Each Python worker loads a table once."""

# finds: nothing
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("worker_table").getOrCreate()


def work(rows):
    import json

    if "_table" not in json.__dict__:
        json.__dict__["_table"] = [bytes(b"x" * 10_000_000) for _ in range(30)]
    time.sleep(1.5)
    return rows


print(spark.sparkContext.parallelize(range(1200), 24).mapPartitions(work).count())
spark.stop()
