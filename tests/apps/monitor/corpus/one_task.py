"""All work is in one task, beside an idle core."""

# finds: few_tasks

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("one_task").getOrCreate()


def work(rows):
    time.sleep(34)
    return rows


print(spark.sparkContext.parallelize(range(9_000), 8).coalesce(1).mapPartitions(work).count())
spark.stop()
