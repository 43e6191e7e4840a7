"""A result beyond spark.driver.maxResultSize."""

# finds: max_result_size

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.appName("result_too_large")
    .config("spark.driver.maxResultSize", "2m")
    .getOrCreate()
)
print(len(spark.range(0, 400_000, 1, 4).selectExpr("uuid() as text").collect()))
spark.stop()
