"""A small table is written as 150 files."""

# finds: small_files

import tempfile

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("files_written").getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    spark.range(2000).repartition(150).write.parquet(f"{folder}/table")
spark.stop()
