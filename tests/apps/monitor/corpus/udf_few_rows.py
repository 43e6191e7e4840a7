"""A UDF on the few rows that are left of many."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("udf_few_rows").getOrCreate()
shown = F.udf(lambda name: name.title(), "string")
rows = spark.range(0, 4_000_000, 1, 4).selectExpr("concat('site ', id % 50) as site", "id")
sums = rows.groupBy("site").agg(F.sum("id").alias("n"))
print(sums.select(shown("site"), "n").orderBy("n").limit(3).collect())
spark.stop()
