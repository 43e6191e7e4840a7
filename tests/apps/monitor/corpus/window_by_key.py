"""A window over the rows of each key."""

# finds: nothing

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("window_by_key").getOrCreate()
rows = spark.range(0, 600_000, 1, 4).select((F.col("id") % 1000).alias("k"), F.rand(3).alias("x"))
ranked = rows.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("x")))
print(ranked.agg(F.max("n")).collect())
spark.stop()
