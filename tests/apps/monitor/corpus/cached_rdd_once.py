"""An RDD is cached and read by one action."""

# finds: cached_unused

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("cached_rdd_once").getOrCreate()
rows = spark.sparkContext.parallelize(range(20_000), 4).map(lambda n: n * n).cache()
print(rows.sum())
spark.stop()
