"""Two million rows go to pandas."""

# finds: collected_to_driver
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("collected_pandas").getOrCreate()
print(spark.range(1000).count())
table = spark.range(0, 2_000_000, 1, 4).selectExpr("id", "uuid() as name").toPandas()
time.sleep(3)
print(len(table))
spark.stop()
