"""Shuffle files vanish between two actions."""

# finds: fetch_failure

import glob
import os
import tempfile

from pyspark.sql import SparkSession

folder = tempfile.mkdtemp()
spark = (
    SparkSession.builder.appName("shuffle_lost").config("spark.local.dir", folder).getOrCreate()
)
rows = spark.sparkContext.parallelize(range(20_000), 4).map(lambda n: (n % 10, n)).groupByKey(4)
print(rows.count())
for file in glob.glob(f"{folder}/**/shuffle_*", recursive=True):
    os.remove(file)
print(rows.count())
spark.stop()
