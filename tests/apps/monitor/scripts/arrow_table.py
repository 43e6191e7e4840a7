"""The cure of ``py4j_object.py``: as much text comes as a column of Arrow batches."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.apps.monitor.sampled import until_sampled

spark = SparkSession.builder.appName("arrow").getOrCreate()
print(spark.range(1000).count())
until_sampled()
size = int(sys.argv[1])
rows = spark.range(0, size // 10_000, 1, 2).select(F.repeat(F.lit("x"), 10_000).alias("weights"))
model = rows.toArrow()
print(model.num_rows * 10_000)
until_sampled()
spark.stop()
