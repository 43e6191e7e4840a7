"""A sort-merge join with a table of 50 rows."""

# finds: small_join_side

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("merge_small")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .getOrCreate()
)
rows = spark.range(0, 900_000, 1, 4).selectExpr("id % 50 as site", "id")
sites = spark.range(50).selectExpr("id as site", "concat('T2_', id) as name")
print(rows.join(sites, "site").groupBy("name").count().count())
spark.stop()
