"""One short task at the end of a job."""

# finds: nothing

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("one_task_short").getOrCreate()


def work(rows):
    time.sleep(3)
    return rows


print(spark.sparkContext.parallelize(range(9_000), 8).coalesce(1).mapPartitions(work).count())
spark.stop()
