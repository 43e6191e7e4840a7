"""A small group-by in 800 partitions that nothing joins."""

# finds: tiny_tasks

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.appName("tiny_shuffle")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.shuffle.partitions", "800")
    .getOrCreate()
)
print(
    spark.range(50_000)
    .groupBy((F.col("id") % 900).alias("k"))
    .count()
    .agg(F.max("count"))
    .collect()
)
spark.stop()
