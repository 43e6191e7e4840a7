"""A join by LIKE, which has no key."""

# finds: cartesian_join

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("pairs_like").getOrCreate()
files = spark.range(8000).select(
    F.concat(F.lit("/store/data/"), F.col("id").cast("string")).alias("path")
)
words = spark.range(1500).select(
    F.concat(F.lit("%/"), F.col("id").cast("string"), F.lit("7")).alias("word")
)
print(files.join(words, F.expr("path like word")).count())
spark.stop()
