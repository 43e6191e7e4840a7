"""A cache fills the heap, and garbage collection takes the rest of the time."""

# finds: gc
# needs: samples

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("garbage").getOrCreate()
rows = spark.range(0, 1_100_000, 1, 2).selectExpr("id", "repeat(uuid(), 9) as text").cache()
for number in range(5):
    print(rows.selectExpr(f"sha2(concat(text, {number}), 512) as d").agg(F.countDistinct("d")).collect())
spark.stop()
