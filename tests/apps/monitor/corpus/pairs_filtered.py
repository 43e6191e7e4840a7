"""All pairs of two tables are compared, and almost none is kept."""

# finds: cartesian_join

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("pairs_filtered").getOrCreate()
left, right = spark.range(6000), spark.range(4000).withColumnRenamed("id", "other")
print(left.join(right, (left.id * 31 + right.other) % 9_999_991 == 5).count())
spark.stop()
