"""Six files are written and read."""

# finds: nothing

import tempfile

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("files_few").getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    spark.range(200_000).repartition(6).write.parquet(f"{folder}/table")
    print(spark.read.parquet(f"{folder}/table").count())
spark.stop()
