"""An aggregate goes to pandas, and a small table is broadcast."""

# finds: nothing
# needs: samples

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("small_pandas").getOrCreate()
rows = spark.range(0, 2_000_000, 1, 4).selectExpr("id % 200 as k", "rand() as value")
print(len(rows.groupBy("k").avg("value").toPandas()))
time.sleep(2)
names = spark.sparkContext.broadcast({number: str(number) for number in range(1000)})
print(spark.sparkContext.parallelize(range(10), 2).map(lambda n: names.value[n]).collect())
time.sleep(2)
spark.stop()
