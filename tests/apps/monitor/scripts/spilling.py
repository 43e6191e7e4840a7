"""A sort of more rows than the memory of its tasks holds."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("spilling").getOrCreate()
rows = spark.range(0, 400_000, 1, 2).select(F.xxhash64("id").alias("key"), F.repeat(F.lit("x"), 200).alias("payload"))
rows.sortWithinPartitions("key").write.format("noop").mode("overwrite").save()
spark.stop()
