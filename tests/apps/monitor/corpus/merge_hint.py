"""A hint forces a sort-merge join on a small table."""

# finds: small_join_side

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.appName("merge_hint")
    .config("spark.sql.adaptive.enabled", "false")
    .getOrCreate()
)
rows = spark.range(0, 700_000, 1, 4).selectExpr("id % 300 as k", "id", "id * 2 as twice")
names = spark.range(300).selectExpr("id as k", "concat('name ', id) as name")
print(rows.join(names.hint("merge"), "k", "left").agg({"name": "max", "twice": "max"}).collect())
spark.stop()
