"""One partition has twice as much as the others."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("mild_skew")
    .config("spark.shuffle.compress", "false")
    .getOrCreate()
)
key = F.when(F.col("id") % 6 == 0, F.lit(0)).otherwise(F.col("id"))
rows = spark.range(0, 600_000, 1, 4).select(
    key.alias("key"), F.repeat(F.lit("x"), 90).alias("payload")
)
rows.repartition(8, "key").write.format("noop").mode("overwrite").save()
spark.stop()
