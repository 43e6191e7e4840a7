"""A day counted by Spark: on a cluster, or where paths, catalogue or options want it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.kernel.merge import KEYS, USER_KEYS, SideRow
from cmsspark.kernel.pre_aggregate import QUARANTINE
from cmsspark.runners.engines import SPARK
from cmsspark.runners.merge_task import MERGED_COLUMNS, PARTIALS, REPORT, MergeTask, unpack, unpack_batches
from cmsspark.runners.scan import StreamFiles, TaskContext
from cmsspark.schemas import Table, stored_table
from cmsspark.sources.dumps import Dump
from cmsspark.store.results import StagedRun, file_count

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: Bytes of logs whose rows one merge takes, as they were read; what the shuffle join hands over is not aggregated yet.
MERGE_BYTES: Final = 2_000_000_000
SHUFFLED_MERGE_BYTES: Final = 500_000_000
#: Rows of a table that the driver takes and writes: some 20 MB packed, 250 MB as they are written.
DRIVER_ROWS: Final = 1_000_000
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


def run_in_spark(
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
    """The rows of all tasks merged, with ``merge_task.MERGED_COLUMNS``. All rows of a key are in one of the
    ``partitions``, which adaptive execution leaves as they are.
    """
    schema = ", ".join(f"`{name}` {word}" for name, word in MERGED_COLUMNS)
    return scanned.repartition(partitions, *KEYS).mapInArrow(MergeTask(day), schema)


def _kept(rows: DataFrame, *, is_adaptive: bool) -> DataFrame:
    """The rows, kept when they are first asked for: side rows and tables come from one reading of the logs.

    Adaptive execution is worth it for the joins of the shuffle way; it makes a job of its own of each exchange, and the
    only one of the index has the partitions that it is to have.
    """
    from pyspark import StorageLevel

    conf = rows.sparkSession.conf
    before = conf.get(_ADAPTIVE, "true")
    conf.set(_ADAPTIVE, str(is_adaptive and before == "true").lower())
    try:
        # What is kept is planned here.
        return rows.persist(StorageLevel.MEMORY_AND_DISK)
    finally:
        conf.set(_ADAPTIVE, before or "true")


@dataclass
class SparkResult:
    """See :class:`cmsspark.pipeline.scan_summary.ScanResult`. ``rows``: merged rows, kept for several results."""

    rows: DataFrame
    engine: str = SPARK

    @cached_property
    def _side(self) -> list[tuple[Any, ...]]:
        """All rows but the packed ones themselves, by the one job that reads the logs: some hundred, and the
        quarantined records that the merge keeps.
        """
        found = self.rows.select("kind", "stream", "app", "nacc", "detail").collect()
        return [(row["kind"], row["stream"], row["app"], row["nacc"], row["detail"]) for row in found]

    def side_rows(self) -> Iterator[SideRow]:
        """The scan's rows that are no accesses."""
        return (row for row in self._side if row[0] not in (QUARANTINE, PARTIALS, REPORT))

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """(stream, detail) of malformed records."""
        return ((stream, detail) for kind, stream, _, _, detail in self._side if kind == QUARANTINE)

    def write(self, run: StagedRun, table: str, fmt: str) -> int:
        """Write a table of the run and return its rows: a small one from here, a large one by tasks."""
        kind = PARTIALS if table == "partials" else REPORT
        schema = stored_table(table)
        run_in_spark = sum(row[3] for row in self._side if row[0] == kind)
        packed = self.rows.where(f"kind = '{kind}'").select("packed")
        if fmt == "parquet" and run_in_spark <= DRIVER_ROWS:
            return run.write_arrow(_in_order([unpack(row["packed"]) for row in packed.collect()], schema), table)
        rows = packed.mapInArrow(unpack_batches, schema.spark()).coalesce(file_count(run_in_spark))
        return run.write(rows.sortWithinPartitions(*(USER_KEYS if kind == PARTIALS else KEYS)), table, fmt)

    def close(self) -> None:
        """Let go of the rows that are kept, and say how near the tasks were to the logs."""
        from cmsspark.runners import locality

        self.rows.unpersist()
        told = locality.told(self.rows.sparkSession)
        if told:
            click.echo(told, err=True)


def _in_order(parts: list[pa.Table], schema: Table) -> pa.Table:
    """The rows of all merges. Each key is in one of them, which has its users in order already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.concat_tables([schema.arrow().empty_table(), *parts])
    if len(parts) < 2:
        return whole
    return whole.take(pc.sort_indices(whole, sort_keys=[(key, "ascending") for key in KEYS]))


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
