"""A cache that is larger than the memory for it, read three times."""

# finds: cache_does_not_fit

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("cache_too_large").getOrCreate()
rows = spark.range(0, 5_000_000, 1, 8).select("id", *(F.rand(n).alias(f"x{n}") for n in range(14)))
rows = rows.cache()
for number in range(3):
    print(rows.agg(F.sum(f"x{number}")).collect())
spark.stop()
