"""A window over large partitions."""

# finds: spill

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("spill_window")
    .config("spark.memory.fraction", "0.1")
    .getOrCreate()
)
rows = spark.range(0, 400_000, 1, 2).select(
    (F.col("id") % 4).alias("k"), F.xxhash64("id").alias("h"), F.repeat(F.lit("x"), 250).alias("p")
)
ranked = rows.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("h")))
ranked.where("n % 2 = 0").write.format("noop").mode("overwrite").save()
spark.stop()
