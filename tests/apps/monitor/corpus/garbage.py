"""Aggregates that keep millions of texts fill the heap, and garbage collection takes the time."""

# finds: gc

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("garbage").getOrCreate()
rows = spark.range(0, 2_400_000, 1, 2).selectExpr("id % 50 as k", "uuid() as text")
for number in range(4):
    lists = rows.groupBy("k").agg(
        F.collect_list(F.concat("text", F.lit(str(number)))).alias("all")
    )
    print(lists.agg(F.sum(F.size("all"))).collect())
spark.stop()
