"""What a person imports: a day's accesses as DataFrames, and the stored tables.

from cmsspark import notebook
spark = notebook.session()
accesses = notebook.accesses("2026-01-15", root="/data/cms", streams=["aaa"])
accesses.groupBy("dataset_name").count().orderBy("count", ascending=False).show()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cmsspark import days, pseudonyms
from cmsspark.jobs import job_of_table
from cmsspark.jobs.options import settings_of, store_of
from cmsspark.session import session as _session
from cmsspark.sources.registry import STREAMS
from cmsspark.storage import files_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session(app: str = "cmsspark notebook", **conf: str) -> SparkSession:
    """The running Spark session, or a local one with the options that right numbers depend on."""
    return _session(app, **conf)


def accesses(
    day: str,
    *,
    root: str | None = None,
    streams: Sequence[str] = STREAMS,
    settings_file: str | None = None,
    allow_tmp: bool = False,
) -> DataFrame:
    """One row for each access of ``day`` that no decoder's bin holds, matched or not.

    Columns: stream, lfn (normalised), site_name, app, user (pseudonym), is_remote, read_bytes, cpu_seconds,
    wall_seconds, dataset_name and block_name (null where DBS does not have the file). Raises what
    ``data_aggregation`` raises.
    """
    from pyspark.sql import functions as F

    from cmsspark.jobs.day import stream_files
    from cmsspark.jobs.inputs import resolve
    from cmsspark.jobs.request import DayRequest
    from cmsspark.jobs.snapshots import open_snapshots
    from cmsspark.sources.folders import Layout
    from cmsspark.sources.reader import Reader
    from cmsspark.sources.tables import dump_table
    from cmsspark.transforms import scan

    settings = settings_of(settings_file)
    request = DayRequest(
        "data_aggregation",
        days.parse_day(day),
        "",
        settings,
        root=root,
        streams=tuple(streams),
        allow_tmp=allow_tmp,
        refresh_dumps=True,
    )
    spark = session()
    files = files_for("hdfs://", spark)
    inputs = resolve(request, Layout.load(settings.sources, root or settings.root), files)
    opened = open_snapshots(files, inputs.dbs, inputs.phedex, settings.cache_dir / "catalogue")
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE)
    replicas = scan.ship(spark, opened.replicas) if opened.replicas else None
    context = scan.TaskContext(request.day, scan.ship(spark, opened.catalogue), replicas, key, Reader, unfolded=True)
    found = scan.scan(spark, stream_files(inputs), context)
    blocks = dump_table(spark, inputs.dbs, "BLOCKS", ("block_id", "block_name")).dropDuplicates(["block_id"])
    return (
        found.join(blocks, "block_id", "left")
        .withColumn("cpu_seconds", F.col("cpu_ms") / F.lit(1000.0))
        .withColumn("wall_seconds", F.col("wall_ms") / F.lit(1000.0))
        .drop("block_id", "cpu_ms", "wall_ms")
    )


def table(name: str, day: str, *, fout: str | None = None, settings_file: str | None = None) -> DataFrame:
    """A stored table's current result for ``day``. Raises InputMissing (66) that names the days there are."""
    from cmsspark.schemas import stored_table
    from cmsspark.sinks.store import current, spark_location

    spark = session()
    store = store_of(fout, settings_of(settings_file))
    found = current(files_for(store, spark), store, job_of_table(name).name, name, days.parse_day(day))
    read = spark.read.schema(stored_table(name).spark())
    if found.manifest["tables"][name]["format"] == "csv":
        return read.csv(spark_location(found.path), header=True, escape='"', multiLine=True)
    return read.parquet(spark_location(found.path))
