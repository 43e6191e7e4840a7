"""One query reads a cache twice."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("cached_self_join").getOrCreate()
rows = spark.range(30_000).selectExpr("id % 3000 as k", "id").cache()
counts = rows.groupBy("k").count()
print(rows.join(counts, "k").agg({"count": "max"}).collect())
spark.stop()
