"""Single accesses of a day as a DataFrame, for notebooks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cmsspark.dumps.dump_tables import table_source
from cmsspark.engines.broadcast_files import ship
from cmsspark.engines.scan import scan
from cmsspark.engines.tasks import TaskContext
from cmsspark.filesystems.opening import files_for
from cmsspark.run.catalogue_snapshots import open_snapshots
from cmsspark.run.inputs import resolve
from cmsspark.run.log_day import stream_files
from cmsspark.run.request import DayRequest
from cmsspark.settings import pseudonyms
from cmsspark.sources.folders import Layout
from cmsspark.sources.reader import Reader
from cmsspark.sources.storage_sites import load_storage_sites

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def scan_accesses(spark: SparkSession, request: DayRequest) -> DataFrame:
    """Return the accesses of a day with their datasets and blocks, as
    :func:`cmsspark.accesses` does.
    """
    from pyspark.sql import functions as F

    settings = request.settings
    files = files_for("hdfs://", spark)
    inputs = resolve(request, Layout.from_settings(settings, request.root), files)
    cache = settings.cache_dir / "catalogue"
    sites = load_storage_sites(settings.sites)
    opened = open_snapshots(
        *(files, inputs.dbs, inputs.replicas, cache), rses_file=settings.rses, sites=sites
    )
    assert opened.catalogue is not None
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE, request.day)
    catalogue = ship(spark, opened.catalogue)
    replicas = ship(spark, opened.replicas) if opened.replicas else None
    context = TaskContext(
        *(request.day, catalogue, replicas, key),
        partial(Reader, storage_sites=sites),
        single_accesses=True,
    )
    rows = scan(spark, stream_files(inputs), context)
    blocks = (
        table_source(spark, inputs.dbs, "BLOCKS", ("block_id", "block_name"))
        .table()
        .dropDuplicates(["block_id"])
    )
    return (
        rows.join(blocks, "block_id", "left")
        .withColumn("cpu_seconds", F.col("cpu_ms") / F.lit(1000.0))
        .withColumn("wall_seconds", F.col("wall_ms") / F.lit(1000.0))
        .drop("block_id", "cpu_ms", "wall_ms")
    )
