"""A full outer join, for which neither side can be broadcast."""

# finds: nothing

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("merge_full_outer")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .getOrCreate()
)
rows = spark.range(0, 500_000, 1, 2).selectExpr("id", "id * 2 as twice")
few = spark.range(0, 1_000_000, 5000).selectExpr("id as other")
print(rows.join(few, rows.id == few.other, "full").agg({"twice": "max"}).collect())
spark.stop()
