"""A join on equal keys."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("equal_keys").getOrCreate()
left, right = spark.range(60_000), spark.range(40_000).withColumnRenamed("id", "other")
print(left.join(right, left.id == right.other).count())
spark.stop()
