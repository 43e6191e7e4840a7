"""A function of many items in parallel: as tasks of Spark, one each, or one after the
other in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Takes what all items share and one item, and returns a JSON object.
Work = Callable[[Any, Any], dict[str, Any]]


def map_tasks(
    work: Work, shared: Any, items: Sequence[Any], spark: SparkSession | None = None
) -> list[dict[str, Any]]:
    """Return the results of all items, in their order. ``shared`` is broadcast once;
    both must be pickled.

    Without a session they run in this process. Raises what the work raises.
    """
    if spark is None:
        return [work(shared, item) for item in items]
    if not items:
        return []
    from cmsspark.engines.session import unwrap_cause

    sent = spark.sparkContext.broadcast((shared, list(items)))

    def batches(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        shared_by_all, all_items = sent.value
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                result = json.dumps(work(shared_by_all, all_items[number]))
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

    count = len(items)
    try:
        rows = (
            spark.range(0, count, 1, count)
            .mapInArrow(batches, "number long, result string")
            .collect()
        )
    except Exception as error:
        raise unwrap_cause(error) from None
    finally:
        sent.unpersist()
    results = {row["number"]: json.loads(row["result"]) for row in rows}
    return [results[number] for number in range(count)]
