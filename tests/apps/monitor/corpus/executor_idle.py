"""Dynamic allocation removes an idle executor."""

# finds: nothing

import time

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("executor_idle")
spark = (
    builder.config("spark.master", "local-cluster[2,1,512]")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.dynamicAllocation.enabled", "true")
    .config("spark.dynamicAllocation.shuffleTracking.enabled", "true")
    .config("spark.dynamicAllocation.minExecutors", "1")
    .config("spark.dynamicAllocation.initialExecutors", "2")
    .config("spark.dynamicAllocation.executorIdleTimeout", "3s")
    .getOrCreate()
)
print(spark.sparkContext.parallelize(range(100), 2).map(lambda n: n + 1).sum())
time.sleep(12)
print(spark.sparkContext.parallelize(range(100), 2).map(lambda n: n + 1).sum())
spark.stop()
