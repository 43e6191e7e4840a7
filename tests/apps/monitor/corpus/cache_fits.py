"""A cache that fits, read three times."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("cache_fits").getOrCreate()
rows = spark.range(0, 500_000, 1, 8).select("id", *(F.rand(n).alias(f"x{n}") for n in range(14)))
rows = rows.cache()
for number in range(3):
    print(rows.agg(F.sum(f"x{number}")).collect())
spark.stop()
