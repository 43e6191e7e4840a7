"""A short pause of the driver."""

# finds: nothing

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("short_wait").getOrCreate()
print(spark.range(1000).count())
time.sleep(8)
print(spark.range(2000).count())
spark.stop()
