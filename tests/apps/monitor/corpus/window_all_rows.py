"""A window without a partition over all rows."""

# finds: window_one_task

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("window_all_rows").getOrCreate()
rows = spark.range(0, 600_000, 1, 4).select(F.rand(3).alias("x"), "id")
ranked = rows.withColumn("n", F.row_number().over(Window.orderBy("x")))
print(ranked.agg(F.max("n")).collect())
spark.stop()
