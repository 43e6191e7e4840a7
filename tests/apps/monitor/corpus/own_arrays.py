"""The driver's Python keeps a large model of its own."""

# finds: nothing
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("own_arrays").getOrCreate()
print(spark.range(1000).count())
time.sleep(2)
model = [bytearray(10_000_000) for _ in range(60)]
time.sleep(3)
print(spark.range(len(model)).count())
spark.stop()
