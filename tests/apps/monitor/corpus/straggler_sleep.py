"""One task takes long with as many rows as the others."""

# finds: straggler

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("straggler_sleep").getOrCreate()


def work(number, rows):
    time.sleep(16 if number == 5 else 0.05)
    return rows


print(spark.sparkContext.parallelize(range(12_000), 12).mapPartitionsWithIndex(work).count())
spark.stop()
