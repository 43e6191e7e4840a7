"""A small job that touches what our jobs touch, so that the JVM's class archive knows it. spark-submit starts it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Arrow tasks, two aggregations, joins by broadcast and by shuffle, Parquet and CSV out and in."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    def doubled(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    spark = SparkSession.builder.getOrCreate()
    numbers = spark.range(0, 1_000, 1, 2).mapInArrow(doubled, "id long")
    named = spark.createDataFrame([(number, f"name {number}") for number in range(10)], "key long, name string")
    folded = numbers.groupBy((F.col("id") % 10).alias("key"), (F.col("id") % 3).alias("user")).agg(
        F.sum("id").alias("total"), F.count("*").alias("rows")
    )
    report = folded.groupBy("key").agg(
        F.sum("total").alias("total"), F.countDistinct("user").alias("users"), F.max("rows").alias("most")
    )
    joined = report.join(F.broadcast(named), "key", "left").withColumn("day", F.to_date(F.lit("2026-01-15")))
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "report")
        joined.coalesce(1).write.parquet(target)
        spark.read.parquet(target).join(named.hint("merge"), "key").orderBy("key").collect()
        joined.write.option("header", True).csv(target + ".csv")
        spark.read.schema("a string, b string").csv(target + ".csv").count()
        joined.toPandas()
    spark.stop()


if __name__ == "__main__":
    main()
