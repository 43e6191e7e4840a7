"""Few keys are collected and given to Spark again."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("collected_keys").getOrCreate()
rows = spark.range(0, 2_000_000, 1, 4).selectExpr("id % 90 as site").distinct().collect()
names = [(row.site, f"site {row.site}") for row in rows]
table = spark.createDataFrame(names, "site long, name string")
print(table.groupBy("name").count().count())
spark.stop()
