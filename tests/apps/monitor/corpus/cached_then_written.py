"""A table is cached, checked and written."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("cached_then_written").getOrCreate()
rows = spark.range(50_000).selectExpr("id", "id % 7 as k").persist()
if rows.count() > 1000:
    rows.write.format("noop").mode("overwrite").save()
rows.unpersist()
spark.stop()
