"""A task whose Python takes far more than its container may have, and what a job of ours says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from cmsspark import errors
from cmsspark.runners.session import cause_of, session


def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take 2.5 GB and keep them until the node has seen it."""
    taken = []
    for batch in batches:
        for number in range(100):
            taken.append(bytes([number]) * 25_000_000)
        time.sleep(20)
        yield batch


def main() -> None:
    """Ask for the rows, as a job does."""
    spark = session("a greedy task")
    try:
        spark.range(0, 1, 1, 1).mapInArrow(take, "id long").collect()
    except Exception as error:
        raise cause_of(error) from None


errors.run_and_exit(main)
