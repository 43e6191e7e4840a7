"""One row has all texts in it."""

# finds: heap_space
# needs: samples

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("heap_full").getOrCreate()
rows = spark.range(0, 8_000_000, 1, 2).selectExpr("id", "repeat(uuid(), 10) as text")
print(rows.groupBy().agg(F.collect_list("text").alias("all")).select(F.size("all")).collect())
spark.stop()
