"""Spark's usual 200 partitions."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.appName("usual_partitions")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.shuffle.partitions", "200")
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
