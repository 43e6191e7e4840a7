"""A result within the same limit."""

# finds: nothing

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.appName("result_small")
    .config("spark.driver.maxResultSize", "2m")
    .getOrCreate()
)
print(len(spark.range(0, 4000, 1, 4).selectExpr("uuid() as text").collect()))
spark.stop()
