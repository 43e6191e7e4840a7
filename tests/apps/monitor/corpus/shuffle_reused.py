"""Two actions use the same shuffle files."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("shuffle_reused").getOrCreate()
rows = spark.sparkContext.parallelize(range(20_000), 4).map(lambda n: (n % 10, n)).groupByKey(4)
print(rows.count())
print(rows.count())
spark.stop()
