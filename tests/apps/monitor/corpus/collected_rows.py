"""900,000 rows are collected."""

# finds: collected_to_driver
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("collected_rows").getOrCreate()
print(spark.range(1000).count())
rows = (
    spark.range(0, 900_000, 1, 4).selectExpr("id", "uuid() as name", "id * 2.5 as value").collect()
)
time.sleep(3)
print(len(rows))
spark.stop()
