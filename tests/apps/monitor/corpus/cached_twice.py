"""A cache that two queries read."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("cached_twice").getOrCreate()
rows = spark.range(100_000).selectExpr("id % 100 as k", "id").cache()
print(rows.count(), rows.groupBy("k").count().count())
spark.stop()
