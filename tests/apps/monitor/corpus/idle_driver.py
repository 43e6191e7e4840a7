"""Both cores wait for 45 seconds while the driver does something else."""

# finds: idle_cores

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("idle_driver").getOrCreate()
print(spark.range(1000).count())
time.sleep(45)
print(spark.range(2000).count())
spark.stop()
