"""A day counted by Spark: on a cluster, or where paths, catalogue or options want it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cmsspark.jobs import engine
from cmsspark.jobs.scanned import Told
from cmsspark.sinks.store import Run
from cmsspark.sources.dumps import Dump
from cmsspark.transforms.scan import Kit, StreamFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def count(spark: SparkSession, streams: Sequence[StreamFiles], dumps: Sequence[Dump], kit: Kit, feed: str) -> BySpark:
    """Count the files of all streams; without a catalogue in ``kit`` the ``dumps`` are joined by shuffle. Nothing is
    read before a result is asked for.
    """
    from pyspark import StorageLevel

    from cmsspark.transforms import aggregate, scan

    shipped = replace(
        kit,
        catalogue=scan.ship(spark, Path(kit.catalogue)) if kit.catalogue else None,
        replicas=scan.ship(spark, Path(kit.replicas)) if kit.replicas else None,
    )
    scanned = scan.scan(spark, streams, shipped, feed)
    if kit.catalogue is None:
        scanned = _by_shuffle(spark, scanned, {dump.kind: dump for dump in dumps})
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 8)
    # The tables and the bins are made from the same rows: the logs are read once.
    return BySpark(aggregate.fold_tasks(scanned, partitions).persist(StorageLevel.MEMORY_AND_DISK), kit.day)


@dataclass
class BySpark:
    """See :class:`cmsspark.jobs.scanned.Counted`."""

    folded: DataFrame
    day: date
    engine: str = engine.SPARK

    def told(self) -> Iterator[Told]:
        """Rows that are neither accesses nor quarantined records."""
        from pyspark.sql import functions as F

        name = F.when(F.col("kind") == "access", "matched").otherwise(F.col("app")).alias("bin")
        counted = (
            self.folded.where(F.col("kind") != "quarantine")
            .groupBy("kind", "stream", name, "detail")
            .agg(F.sum("nacc").alias("count"))
        )
        for row in counted.collect():
            yield row["kind"], row["stream"], row["bin"], row["count"], row["detail"]

    def known(self) -> dict[str, set[str]]:
        """What any access has, by stream."""
        from pyspark.sql import functions as F

        there = {
            "bytes": F.col("read_bytes") > 0,
            "site": F.col("site_name") != "unknown",
            "user": F.col("user").isNotNull(),
            "app": F.col("app") != "unknown",
        }
        accesses = self.folded.where(F.col("kind") == "access").groupBy("stream")
        rows = accesses.agg(*(F.max(is_there).alias(what) for what, is_there in there.items())).collect()
        return {row["stream"]: {what for what in there if row[what]} for row in rows}

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """(stream, detail) of malformed records."""
        from pyspark.sql import functions as F

        records = self.folded.where(F.col("kind") == "quarantine").select("stream", "detail")
        for row in records.toLocalIterator():
            yield row["stream"], row["detail"]

    def write(self, run: Run, table: str, fmt: str) -> int:
        """Write a table of the run and return its rows."""
        from cmsspark.transforms import aggregate

        rows = aggregate.partials if table == "partials" else aggregate.report
        return run.write(rows(self.folded, self.day), table, fmt)

    def close(self) -> None:
        """Let go of the rows that are kept for several results, and tell how near the tasks were to the logs."""
        from cmsspark.transforms import locality

        self.folded.unpersist()
        told = locality.told(self.folded.sparkSession)
        if told:
            click.echo(told, err=True)


def _by_shuffle(spark: SparkSession, hashed: DataFrame, dumps: dict[str, Dump]) -> DataFrame:
    from pyspark.sql import functions as F

    from cmsspark.sources import phedex
    from cmsspark.sources.tables import dump_table
    from cmsspark.transforms import shuffle

    dbs = dumps["dbs"]
    files = dump_table(spark, dbs, "FILES", ("logical_file_name", "block_id", "dataset_id", "file_id"))
    datasets = dump_table(spark, dbs, "DATASETS", ("dataset_id", "dataset"))
    replicas = None
    if "phedex" in dumps:
        on_disk = (F.col("kind") == "disk") & (F.col("node_files") > 0)
        replicas = phedex.replicas(spark, dumps["phedex"]).where(on_disk)
        replicas = replicas.select("block_name", F.col("site_name").alias("site"))
    return shuffle.attach(
        hashed,
        files.withColumnRenamed("logical_file_name", "lfn"),
        datasets.withColumnRenamed("dataset", "dataset_name"),
        dump_table(spark, dbs, "BLOCKS", ("block_id", "block_name")),
        replicas,
    )
