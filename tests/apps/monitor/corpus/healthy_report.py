"""Groups, the first of them, and distinct counts."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("healthy_report").getOrCreate()
rows = spark.range(0, 200_000, 1, 4).select(
    (F.col("id") % 97).alias("key"), F.rand(7).alias("value")
)
sums = rows.groupBy("key").agg(F.sum("value").alias("total"))
print(sums.orderBy(F.desc("total")).limit(3).toPandas())
print(rows.groupBy("key").agg(F.countDistinct("value")).where("key < 5").collect())
spark.stop()
