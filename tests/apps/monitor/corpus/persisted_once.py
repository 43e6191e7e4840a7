"""A table is kept on disk and written once."""

# finds: cached_unused

from pyspark import StorageLevel
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("persisted_once").getOrCreate()
rows = spark.range(80_000).selectExpr("id", "id * 2 as twice").persist(StorageLevel.DISK_ONLY)
rows.write.format("noop").mode("overwrite").save()
spark.stop()
