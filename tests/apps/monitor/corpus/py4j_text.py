"""A text of 80 million characters comes through Py4J."""

# finds: driver_heap_jump
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("py4j_text").getOrCreate()
print(spark.range(1000).count())
time.sleep(3)
text = spark._jvm.org.apache.commons.lang3.StringUtils.repeat("x", 80_000_000)
time.sleep(4)
print(len(text))
spark.stop()
