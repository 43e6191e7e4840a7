"""The first tasks load something, and take longer."""

# finds: nothing

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("slow_first").getOrCreate()


def work(number, rows):
    time.sleep(4 if number < 2 else 1.5)
    return rows


print(spark.sparkContext.parallelize(range(6_000), 6).mapPartitionsWithIndex(work).count())
spark.stop()
