"""Nine tenths of the rows have one key."""

# finds: skewed_stage

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("skew_text")
    .config("spark.shuffle.compress", "false")
    .getOrCreate()
)
key = F.when(F.col("id") % 10 == 0, F.col("id")).otherwise(F.lit(0))
rows = spark.range(0, 500_000, 1, 4).select(
    key.alias("key"), F.repeat(F.lit("x"), 150).alias("payload")
)
rows.repartition(20, "key").write.format("noop").mode("overwrite").save()
spark.stop()
