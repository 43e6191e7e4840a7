"""Each task has a Python worker of its own, which ends with it."""

# finds: nothing

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("worker_not_reused")
spark = builder.config("spark.python.worker.reuse", "false").getOrCreate()
print(spark.sparkContext.parallelize(range(1000), 4).map(lambda n: n + 1).sum())
spark.stop()
