"""A sort that fits."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("fits_sort").getOrCreate()
rows = spark.range(0, 300_000, 1, 2).select(
    F.xxhash64("id").alias("key"), F.repeat(F.lit("x"), 100).alias("payload")
)
rows.sortWithinPartitions("key").write.format("noop").mode("overwrite").save()
spark.stop()
