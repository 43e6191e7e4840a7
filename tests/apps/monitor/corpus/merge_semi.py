"""A semi-join with a small table on its right."""

# finds: small_join_side

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("merge_semi")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .getOrCreate()
)
rows = spark.range(0, 900_000, 1, 4).selectExpr("id", "id * 3 as other")
few = spark.range(0, 900_000, 9000).selectExpr("id as chosen")
print(rows.join(few, rows.id == few.chosen, "left_semi").agg({"other": "max"}).collect())
spark.stop()
