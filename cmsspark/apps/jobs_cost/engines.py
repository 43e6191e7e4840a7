"""Reads a feed's day by processes of this host or in Spark: both move blobs to the same merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.jobs_cost.feeds import Feed
from cmsspark.base import buffers
from cmsspark.base.arrays import Longs
from cmsspark.counting.htcondor_jobs import EARLIER, JOB
from cmsspark.counting.merge import Merge, SideRow
from cmsspark.counting.pre_aggregate import BIN, COLUMNS, QUARANTINE
from cmsspark.engines.job_work import PARTITIONS, JobSpool
from cmsspark.engines.tasks import StreamFiles, TaskContext, pack_tasks, total_weight
from cmsspark.engines.worker_pool import TASK_BYTES, WorkerPool, cores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: The kind of a row with encoded sums.
_SUMS: Final = "sums"
#: (name, Spark type) of each column of a merge in Spark.
_MERGED: Final = (
    ("kind", "string"),
    ("stream", "string"),
    ("app", "string"),
    ("nacc", "bigint"),
    ("detail", "string"),
    ("packed", "binary"),
)
#: Bytes of logs, decompressed, whose records one merge task takes.
_MERGE_BYTES: Final = 2_000_000_000


@dataclass
class ReadDay:
    """A day that was read: its sums, its side rows with all bins, and (stream, detail)
    of malformed records.
    """

    sums: Any
    side: list[SideRow]
    quarantined: list[tuple[str, str]]

    @classmethod
    def from_sums(
        cls, feed: Feed, sums: Any, side: Iterable[SideRow], quarantined: Iterable[tuple[str, str]]
    ) -> ReadDay:
        """Return the day with the bins of the merge."""
        merged: list[SideRow] = [
            (BIN, feed.name, name, count, None) for name, count in feed.bins(sums).items()
        ]
        return cls(sums, [*side, *merged], list(quarantined))


def read_by_processes(
    feed: Feed,
    pool: WorkerPool,
    streams: Sequence[StreamFiles],
    context: TaskContext,
    earlier: Longs,
    folder: str,
) -> ReadDay:
    """Read the files. ``earlier``: stored ids of the day before, sorted; ``folder``:
    for what does not fit memory.
    """
    spool, side = JobSpool(folder), Merge()
    try:
        for batch in pool.scan(pack_tasks(streams, cores(), TASK_BYTES), context):
            side_rows = spool.add(batch)
            if side_rows is not None:
                side.add(side_rows)
        ids = np.union1d(earlier, spool.earlier())
        sums = feed.new_sums()
        for blobs in spool.partitions():
            sums.merge(blobs, ids)
    finally:
        spool.close()
    aggregated = side.result()
    return ReadDay.from_sums(feed, sums, aggregated.side_rows(), aggregated.quarantined)


def read_in_spark(
    feed: Feed,
    spark: SparkSession,
    streams: Sequence[StreamFiles],
    context: TaskContext,
    earlier: Longs,
    spark_feed: str = "auto",
) -> ReadDay:
    """Read the files in one Spark job, of two stages; the driver gets the sums of each partition."""
    from pyspark.sql import functions as F

    from cmsspark.engines.scan import scan
    from cmsspark.engines.session import static_plans
    from cmsspark.engines.spark_progress import spark_progress

    scanned = scan(spark, streams, context, spark_feed)
    partitions = max(1, min(PARTITIONS, math.ceil(total_weight(streams) / _MERGE_BYTES)))
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _MERGED)
    by_job = scanned.repartition(partitions, F.expr(f"id_hash & {PARTITIONS - 1}"))
    sums, side, quarantined = feed.new_sums(), [], []
    with spark_progress(spark, "reading logs in Spark"), static_plans(spark):
        for row in by_job.mapInArrow(FeedMergeTask(feed.new_sums, earlier), schema).collect():
            if row["kind"] == _SUMS:
                sums.add_encoded(bytes(row["packed"]))
            elif row["kind"] == QUARANTINE:
                quarantined.append((row["stream"], row["detail"]))
            else:
                side.append((row["kind"], row["stream"], row["app"], row["nacc"], row["detail"]))
    return ReadDay.from_sums(feed, sums, side, quarantined)


@dataclass(frozen=True)
class FeedMergeTask:
    """Merges one partition in Spark: batches of ``jobs.JOB_COLUMNS`` become side rows
    and encoded sums.
    """

    new_sums: Any
    earlier: Longs

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        side, blobs, earlier = Merge(), [], [self.earlier]
        for batch in batches:
            is_blob, is_id = (
                pc.equal(batch["kind"], buffers.scalar(kind, "string")) for kind in (JOB, EARLIER)
            )
            blobs += batch["record"].filter(is_blob).to_pylist()
            earlier.append(buffers.to_numpy(batch["id_hash"].filter(is_id), np.int64))
            side.add(
                batch.filter(pc.invert(pc.or_(is_blob, is_id))).select(
                    [name for name, _ in COLUMNS]
                )
            )
        sums = self.new_sums()
        sums.merge(blobs, np.unique(np.concatenate(earlier)))
        aggregated = side.result()
        rows: list[tuple[Any, ...]] = [(*row, None) for row in aggregated.side_rows()]
        rows += [
            (QUARANTINE, stream, "malformed", 0, detail, None)
            for stream, detail in aggregated.quarantined
        ]
        yield _batch([*rows, (_SUMS, None, None, None, None, sums.encode())])


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    *texts, packed = zip(*rows, strict=True)
    kinds = {"string": "string", "bigint": "long"}
    columns = [
        buffers.array(values, kinds[kind])
        for values, (_, kind) in zip(texts, _MERGED, strict=False)
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, buffers.binary(packed)], [name for name, _ in _MERGED]
    )
