# run_spark: --avro
"""A user's own job: Avro files as rows, by spark-avro. Arguments: folder, target."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("avro").load(sys.argv[1])
rows.write.mode("overwrite").parquet(sys.argv[2])
sys.stdout.write(f"{rows.count()} rows by Spark {spark.version}\n")
