"""A task for each number."""

# finds: tiny_tasks

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("tiny_slices").getOrCreate()
print(spark.sparkContext.parallelize(range(700), 700).map(lambda n: n * n).sum())
spark.stop()
