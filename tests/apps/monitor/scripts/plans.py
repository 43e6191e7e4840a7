"""A product of all pairs, many small files, a sort whose rows all go to the driver, and
a cache that nobody reads.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("plans").getOrCreate()
left, right = spark.range(3000), spark.range(2000).withColumnRenamed("id", "other")
print(left.crossJoin(right).agg(F.sum(F.col("id") * F.col("other"))).collect())
spark.range(1000).repartition(120).write.parquet("small")
print(len(spark.range(150_000).orderBy(F.rand(7)).collect()))
print(spark.range(100_000).repartition(4).cache().count())
spark.stop()
