"""A cache before a hard shuffle of which four outputs are made."""

# finds: repeated_work

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("cached_before_work").getOrCreate()
folder = tempfile.mkdtemp()
raw = (
    spark.range(0, 900_000, 1, 4)
    .selectExpr("id % 300000 as file", "id % 60 as site", "id")
    .cache()
)
sums = raw.groupBy("file", "site").agg(F.sum("id").alias("n"), F.count("*").alias("c"))
sums.write.parquet(f"{folder}/sums")
sums.groupBy("site").agg(F.sum("n")).write.parquet(f"{folder}/sites")
sums.where("n > 1000").agg(F.max("n")).write.parquet(f"{folder}/large")
sums.groupBy("c").count().write.parquet(f"{folder}/counts")
spark.stop()
