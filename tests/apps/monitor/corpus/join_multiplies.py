"""A join of rows with each other by a key of few values."""

# finds: join_multiplies_rows

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("join_multiplies").getOrCreate()
rows = spark.range(0, 60_000, 1, 2).selectExpr("id % 300 as dataset", "id as a")
other = spark.range(0, 60_000, 1, 2).selectExpr("id % 300 as dataset", "id as b")
print(rows.join(other, "dataset").agg(F.max("a"), F.max("b")).collect())
spark.stop()
