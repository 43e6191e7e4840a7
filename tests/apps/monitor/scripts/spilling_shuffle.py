"""A sort of rows that a shuffle brings: with few partitions its tasks spill. It stays
as long as its last task.
"""

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("spilling shuffle").getOrCreate()
rows = spark.range(0, 600_000, 1, 2).select(
    (F.col("id") % 5003).alias("key"), F.xxhash64("id").alias("hash"), F.repeat(F.col("id").cast("string"), 40).alias("payload")
)
ranked = rows.withColumn("rank", F.row_number().over(Window.partitionBy("key").orderBy("hash")))
ranked.write.format("noop").mode("overwrite").save()
spark.stop()
