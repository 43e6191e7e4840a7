"""A nested-loop join of one row: each row beside the sum of all."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("one_row_beside").getOrCreate()
rows = spark.range(2_000_000)
total = rows.agg(F.sum("id").alias("total"))
print(rows.crossJoin(total).where(F.col("id") * 4_000_000 > F.col("total")).count())
spark.stop()
