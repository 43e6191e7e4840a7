"""The cores of a Spark application."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def count_cores(spark: SparkSession) -> int:
    """Return the most cores that the application may get."""
    conf = spark.sparkContext.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        return int(spark.sparkContext.defaultParallelism)
    executors = conf.get("spark.dynamicAllocation.maxExecutors", "")
    return int(executors or 1) * int(conf.get("spark.executor.cores", "1") or 1)
