"""Many partitions are joined before they are written."""

# finds: nothing

import tempfile

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("files_joined").getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    spark.range(2000).repartition(150).coalesce(2).write.parquet(f"{folder}/table")
spark.stop()
