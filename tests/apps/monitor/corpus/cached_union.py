"""One action reads a cached RDD in both parts of a union."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("cached_union").getOrCreate()
rows = spark.sparkContext.parallelize(range(20_000), 4).map(lambda n: n * n).cache()
print(rows.map(lambda n: n + 1).union(rows.map(lambda n: n - 1)).sum())
spark.stop()
