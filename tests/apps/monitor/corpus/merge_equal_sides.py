"""A sort-merge join of two sides of one size."""

# finds: nothing

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("merge_equal_sides")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .getOrCreate()
)
left = spark.range(0, 500_000, 1, 2).selectExpr("id", "repeat('a', 30) as a")
right = spark.range(0, 500_000, 1, 2).selectExpr("id as other", "repeat('b', 30) as b")
print(left.join(right, left.id == right.other).agg({"a": "max", "b": "max"}).collect())
spark.stop()
