"""A window without a partition over the sums of sites."""

# finds: nothing

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("window_few_rows").getOrCreate()
rows = spark.range(0, 2_000_000, 1, 4).selectExpr("id % 80 as site", "id")
sums = rows.groupBy("site").agg(F.sum("id").alias("n"))
ranked = sums.withColumn("rank", F.rank().over(Window.orderBy(F.desc("n"))))
print(len(ranked.collect()))
spark.stop()
