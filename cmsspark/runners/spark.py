"""A day counted by Spark: on a cluster, or where paths, catalogue or options want it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.kernel.merge import KEYS, USER_KEYS, SideRow
from cmsspark.kernel.pre_aggregate import QUARANTINE
from cmsspark.pipeline import engine
from cmsspark.runners.merge_task import PARTIALS, REPORT, ROWS
from cmsspark.runners.scan import StreamFiles, TaskContext
from cmsspark.schemas import stored_table
from cmsspark.sources.dumps import Dump
from cmsspark.store.results import Run, file_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Bytes of logs whose rows one merge takes, as they were read; what the shuffle join hands over is not aggregated yet.
MERGE_BYTES: Final = 4_000_000_000
SHUFFLED_MERGE_BYTES: Final = 500_000_000
#: Whether Spark plans what it keeps anew while it runs: that makes each exchange a job of its own.
_ADAPTIVE_CACHE: Final = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


def count(
    spark: SparkSession, streams: Sequence[StreamFiles], dumps: Sequence[Dump], context: TaskContext, feed: str
) -> SparkResult:
    """Count the files of all streams; without a catalogue in ``context`` the ``dumps`` are joined by shuffle. Nothing
    is read before a result is asked for.
    """
    from cmsspark.runners import scan

    by_index = context.catalogue is not None
    shipped = replace(
        context,
        catalogue=scan.ship(spark, Path(context.catalogue)) if context.catalogue else None,
        replicas=scan.ship(spark, Path(context.replicas)) if context.replicas else None,
    )
    scanned = scan.scan(spark, streams, shipped, feed)
    if not by_index:
        scanned = _by_shuffle(spark, scanned, {dump.kind: dump for dump in dumps})
    partitions = math.ceil(scan.weight_of(streams) / (MERGE_BYTES if by_index else SHUFFLED_MERGE_BYTES))
    return SparkResult(_kept(merged(scanned, max(1, partitions), context.day), is_adaptive=not by_index))


def merged(scanned: DataFrame, partitions: int, day: date) -> DataFrame:
    """The rows of all tasks merged: columns of ``merge_task.merged_columns()``. All rows of a key are in one of the
    ``partitions``, which adaptive execution leaves as they are.
    """
    from cmsspark.runners.merge_task import MergeTask, merged_columns

    words = {"long": "bigint"}
    schema = ", ".join(f"`{name}` {words.get(word, word)}" for name, word in merged_columns().items())
    return scanned.repartition(partitions, *KEYS).mapInArrow(MergeTask(day), schema)


def _kept(rows: DataFrame, *, is_adaptive: bool) -> DataFrame:
    """The rows, kept when they are first asked for: side rows and tables come from one reading of the logs.

    The joins of the shuffle way are worth adaptive execution; the one exchange by the index is not.
    """
    from pyspark import StorageLevel

    before = rows.sparkSession.conf.get(_ADAPTIVE_CACHE, "true")
    rows.sparkSession.conf.set(_ADAPTIVE_CACHE, str(is_adaptive).lower())
    try:
        return rows.persist(StorageLevel.MEMORY_AND_DISK)
    finally:
        rows.sparkSession.conf.set(_ADAPTIVE_CACHE, before or "true")


@dataclass
class SparkResult:
    """See :class:`cmsspark.pipeline.scan_summary.ScanResult`. ``rows``: merged rows, kept for several results."""

    rows: DataFrame
    engine: str = engine.SPARK

    @cached_property
    def _side(self) -> list[SideRow]:
        """All side rows, by the one job that reads the logs: some hundred, and the quarantined records that the merge
        keeps.
        """
        from pyspark.sql import functions as F

        side = self.rows.where(~F.col("kind").isin(PARTIALS, REPORT))
        found = side.select("kind", "stream", "app", "nacc", "detail").collect()
        return [(row["kind"], row["stream"], row["app"], row["nacc"], row["detail"]) for row in found]

    def side_rows(self) -> Iterator[SideRow]:
        """The scan's rows that are no accesses."""
        return (row for row in self._side if row[0] not in (QUARANTINE, ROWS))

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """(stream, detail) of malformed records."""
        return ((stream, detail or "") for kind, stream, _, _, detail in self._side if kind == QUARANTINE)

    def write(self, run: Run, table: str, fmt: str) -> int:
        """Write a table of the run and return its rows."""
        kind = PARTIALS if table == "partials" else REPORT
        counts = [count for row_kind, _, name, count, _ in self._side if (row_kind, name) == (ROWS, kind)]
        rows = self.rows.where(f"kind = '{kind}'").select(stored_table(table).names)
        if len(counts) > 1:
            # Each merge has sorted its own rows.
            keys = USER_KEYS if kind == PARTIALS else KEYS
            rows = rows.coalesce(file_count(sum(counts))).sortWithinPartitions(*keys)
        return run.write(rows, table, fmt)

    def close(self) -> None:
        """Let go of the rows that are kept, and say how near the tasks were to the logs."""
        from cmsspark.runners import locality

        self.rows.unpersist()
        told = locality.told(self.rows.sparkSession)
        if told:
            click.echo(told, err=True)


def _by_shuffle(spark: SparkSession, hashed: DataFrame, dumps: dict[str, Dump]) -> DataFrame:
    from pyspark.sql import functions as F

    from cmsspark.runners import shuffle_join
    from cmsspark.runners.dump_tables import dump_table, replica_rows

    dbs = dumps["dbs"]
    files = dump_table(spark, dbs, "FILES", ("logical_file_name", "block_id", "dataset_id", "file_id"))
    datasets = dump_table(spark, dbs, "DATASETS", ("dataset_id", "dataset"))
    replicas = None
    if "phedex" in dumps:
        on_disk = (F.col("kind") == "disk") & (F.col("node_files") > 0)
        replicas = replica_rows(spark, dumps["phedex"]).where(on_disk)
        replicas = replicas.select("block_name", F.col("site_name").alias("site"))
    return shuffle_join.attach(
        hashed,
        files.withColumnRenamed("logical_file_name", "lfn"),
        datasets.withColumnRenamed("dataset", "dataset_name"),
        dump_table(spark, dbs, "BLOCKS", ("block_id", "block_name")),
        replicas,
    )
