"""Rows that a script makes itself travel in its tasks."""

# finds: large_closure
# needs: samples

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("tasks_large").getOrCreate()
texts = [str(number) * 1000 for number in range(8000)]
print(spark.sparkContext.parallelize(texts, 2).map(len).sum())
spark.stop()
