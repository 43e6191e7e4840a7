"""A small product: a row for each day and site."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("small_product").getOrCreate()
days, sites = spark.range(365), spark.range(60).withColumnRenamed("id", "site")
print(days.crossJoin(sites).count())
spark.stop()
