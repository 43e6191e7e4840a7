"""A cache that one query reads once."""

# finds: cached_unused

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("cached_once").getOrCreate()
rows = spark.range(100_000).selectExpr("id % 100 as k", "id").cache()
print(rows.groupBy("k").count().count())
spark.stop()
