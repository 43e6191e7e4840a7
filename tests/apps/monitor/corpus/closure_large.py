"""Functions that carry a table of their own into each of three jobs."""

# finds: large_closure
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("closure_large").getOrCreate()
table = {number: f"name {number}" * 3 for number in range(500_000)}
numbers = spark.sparkContext.parallelize(range(2000), 4)
for shift in range(3):
    print(numbers.map(lambda number, shift=shift: len(table[number + shift])).sum())
    time.sleep(2)
spark.stop()
