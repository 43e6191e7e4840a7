"""As much by even keys."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("even_keys")
    .config("spark.shuffle.compress", "false")
    .getOrCreate()
)
rows = spark.range(0, 500_000, 1, 4).select(
    (F.col("id") % 5000).alias("key"), F.repeat(F.lit("x"), 150).alias("payload")
)
rows.repartition(20, "key").write.format("noop").mode("overwrite").save()
spark.stop()
