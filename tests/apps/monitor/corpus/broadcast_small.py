"""The small table is broadcast."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("broadcast_small").getOrCreate()
rows = spark.range(0, 900_000, 1, 4).selectExpr("id % 50 as site", "id")
sites = spark.range(50).selectExpr("id as site", "concat('T2_', id) as name")
print(rows.join(sites, "site").groupBy("name").count().count())
spark.stop()
