"""A large dictionary is broadcast."""

# finds: driver_python_jump
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("broadcast_table").getOrCreate()
print(spark.range(1000).count())
time.sleep(2)
table = spark.sparkContext.broadcast(
    {number: f"dataset {number} " * 5 for number in range(3_000_000)}
)
time.sleep(2)
print(spark.sparkContext.parallelize(range(10), 2).map(lambda n: n + 1).sum(), len(table.value))
spark.stop()
