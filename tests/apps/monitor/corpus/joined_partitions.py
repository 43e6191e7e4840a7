"""Adaptive execution joins small partitions."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.appName("joined_partitions")
spark = builder.config("spark.sql.shuffle.partitions", "800").getOrCreate()
print(
    spark.range(50_000)
    .groupBy((F.col("id") % 900).alias("k"))
    .count()
    .agg(F.max("count"))
    .collect()
)
spark.stop()
