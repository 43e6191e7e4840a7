"""Python workers that take far more memory than the container of their executor has."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()


def greedy(numbers: Iterator[int]) -> Iterator[int]:
    """Take 2.5 GB, and keep them while YARN looks."""
    kept = [bytearray(b"x") * 100_000_000 for _ in range(25)]
    time.sleep(60)
    yield sum(len(one) for one in kept)


spark.sparkContext.parallelize(range(1), 1).mapPartitions(greedy).collect()
