"""Two executors do their work."""

# finds: nothing

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("executors_work")
spark = (
    builder.config("spark.master", "local-cluster[2,1,512]")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .getOrCreate()
)
print(
    spark.sparkContext.parallelize(range(2000), 4)
    .map(lambda n: (n % 3, n))
    .reduceByKey(lambda a, b: a + b, 2)
    .collect()
)
spark.stop()
