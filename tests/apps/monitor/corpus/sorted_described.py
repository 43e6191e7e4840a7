"""All rows are sorted and collected, under a description of the script's own."""

# finds: sort_for_first_rows

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("sorted_described").getOrCreate()
spark.sparkContext.setJobDescription("the largest values of the day")
print(spark.range(160_000).select(F.rand(7).alias("x")).orderBy("x").collect()[:3])
spark.stop()
