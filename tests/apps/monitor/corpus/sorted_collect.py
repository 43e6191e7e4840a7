"""All rows are sorted and collected for three of them."""

# finds: sort_for_first_rows

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("sorted_collect").getOrCreate()
print(spark.range(160_000).select(F.rand(7).alias("x")).orderBy("x").collect()[:3])
spark.stop()
