"""Rows are collected, changed in Python and given to Spark again."""

# finds: collected_and_parallelized

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("collected_again").getOrCreate()
rows = spark.range(0, 400_000, 1, 4).selectExpr("id", "uuid() as name").collect()
names = [(row.name.upper(), row.id) for row in rows]
print(spark.sparkContext.parallelize(names, 4).map(lambda pair: len(pair[0])).sum())
spark.stop()
