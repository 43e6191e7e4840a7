"""Sorts spill with off-heap memory that is too small."""

# finds: spill

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("off_heap_spills")
    .config("spark.memory.offHeap.enabled", "true")
    .config("spark.memory.offHeap.size", "48m")
    .getOrCreate()
)
rows = spark.range(0, 1_500_000, 1, 2).select(
    F.rand(1).alias("x"), F.sha2(F.col("id").cast("string"), 256).alias("s")
)
rows.repartition(2, "x").sortWithinPartitions("s").write.format("noop").mode("overwrite").save()
spark.stop()
