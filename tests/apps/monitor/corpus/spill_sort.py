"""A sort that does not fit into the memory of its tasks."""

# finds: spill

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("spill_sort").config("spark.memory.fraction", "0.1").getOrCreate()
)
rows = spark.range(0, 500_000, 1, 2).select(
    F.xxhash64("id").alias("key"), F.repeat(F.lit("x"), 200).alias("payload")
)
rows.sortWithinPartitions("key").write.format("noop").mode("overwrite").save()
spark.stop()
