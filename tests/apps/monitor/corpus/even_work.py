"""Tasks that all take the same time."""

# finds: nothing

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("even_work").getOrCreate()


def work(number, rows):
    time.sleep(0.8)
    return rows


print(spark.sparkContext.parallelize(range(12_000), 12).mapPartitionsWithIndex(work).count())
spark.stop()
