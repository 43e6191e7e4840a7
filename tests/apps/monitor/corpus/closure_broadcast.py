"""The same table as a broadcast."""

# finds: nothing
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("closure_broadcast").getOrCreate()
table = spark.sparkContext.broadcast({number: f"name {number}" * 3 for number in range(500_000)})
numbers = spark.sparkContext.parallelize(range(2000), 4)
for shift in range(3):
    print(numbers.map(lambda number, shift=shift: len(table.value[number + shift])).sum())
    time.sleep(2)
spark.stop()
