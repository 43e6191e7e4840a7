"""A folder for each value: 240 files of some rows."""

# finds: small_files

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("files_partitioned").getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    spark.range(0, 3000, 1, 2).select("id", (F.col("id") % 120).alias("day")).write.partitionBy(
        "day"
    ).csv(f"{folder}/t")
spark.stop()
