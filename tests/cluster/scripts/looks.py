"""What an executor sees of the host that submitted it. Arguments: a path of that host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
path = sys.argv[1]


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whether the path is there, where the package comes from, and whether its compiled
    code works there.
    """
    import cmsspark
    from cmsspark.base.compiled import compiled

    for _ in batches:
        rows = {
            "is_there": pa.array([os.path.exists(path)]),
            "package": pa.array([cmsspark.__file__]),
        }
        yield pa.record_batch(
            {**rows, "is_compiled": pa.array([compiled("base.hashed") is not None])}
        )


(row,) = (
    spark.range(0, 1, 1, 1)
    .mapInArrow(look, "is_there boolean, package string, is_compiled boolean")
    .collect()
)
sys.stdout.write(
    f"{path} is {'seen' if row['is_there'] else 'not seen'}; package from {row['package']}\n"
)
sys.stdout.write(f"compiled: {row['is_compiled']}\n")
