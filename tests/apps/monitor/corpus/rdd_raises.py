"""A record is no number."""

# finds: failed_task

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("rdd_raises").getOrCreate()
print(spark.sparkContext.parallelize(["1", "2", "three"], 3).map(int).sum())
spark.stop()
