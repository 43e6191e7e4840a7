"""Sorts the raw logs of a month, which are all in memory meanwhile. Arguments: their
folder, copies of each line.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

folder, copies = sys.argv[1], int(sys.argv[2])
spark = SparkSession.builder.appName("month").getOrCreate()
lines = spark.read.option("recursiveFileLookup", True).option("pathGlobFilter", "part*").text(folder)
many = lines.select("value", F.explode(F.sequence(F.lit(1), F.lit(copies))).alias("copy"))
# A sort keeps its rows until the last one is read; four digests of each make that last
# for seconds.
ordered = many.repartition(2, F.xxhash64("value", "copy")).sortWithinPartitions("copy", "value")
digest = F.concat("value", F.col("copy").cast("string"))
for _ in range(4):
    digest = F.sha2(F.concat(digest, "value"), 512)
ordered.select(digest.alias("digest")).write.format("noop").mode("overwrite").save()
spark.stop()
