"""Functions for notebooks: the accesses of a day and the stored tables as Spark DataFrames.

Example:
    >>> from cmsspark import notebook
    >>> accesses = notebook.accesses("2026-01-15", root="/data/mirror", streams=["aaa"])
    >>> usage = accesses.groupBy("dataset_name").count().orderBy("count", ascending=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cmsspark import days, pseudonyms
from cmsspark.errors import UsageError
from cmsspark.file_systems import files_for
from cmsspark.pipeline.job_index import job_of_table
from cmsspark.pipeline.options import settings_of, store_of
from cmsspark.runners.session import session as _session
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session(app: str = "cmsspark notebook", **conf: str) -> SparkSession:
    """Return the running Spark session, or start a local one with the options that correct numbers depend on.

    ``app`` names the application. Other keywords are ignored where a session is running already.

    Example:
        >>> spark = notebook.session()
        >>> spark.conf.get("spark.sql.session.timeZone")
        'UTC'
    """
    return _session(app, **conf)


def accesses(
    day: str,
    *,
    root: str | None = None,
    streams: Sequence[str] = ACCESS_STREAMS,
    settings_file: str | None = None,
    allow_tmp: bool = False,
) -> DataFrame:
    """Return a DataFrame with one row for each access of ``day``, whether its file is in DBS or not.

    Columns: stream, lfn (normalised), site_name, app, user (pseudonym), is_remote, read_bytes, cpu_seconds,
    wall_seconds, dataset_name and block_name (both null where DBS does not have the file). Records in a bin of the
    decoder (malformed, out of day, only written, without a file name) are left out.

    Raises the errors of the job ``data_aggregation``, for example InputMissing (66) for a day without logs, and
    UsageError (2) for a stream of jobs.

    Example:
        >>> accesses = notebook.accesses("2026-01-15", root="/data/mirror", streams=["aaa"])
        >>> accesses.where("dataset_name is not null").count() > 0
        True
        >>> sorted(accesses.columns)[:4]
        ['app', 'block_name', 'cpu_seconds', 'dataset_name']
    """
    from pyspark.sql import functions as F

    from cmsspark.pipeline.catalogue_snapshots import open_snapshots
    from cmsspark.pipeline.inputs import resolve
    from cmsspark.pipeline.log_day import stream_files
    from cmsspark.pipeline.request import DayRequest
    from cmsspark.runners.dump_tables import dump_table
    from cmsspark.runners.scan import scan
    from cmsspark.runners.shipped import ship
    from cmsspark.runners.tasks import TaskContext
    from cmsspark.sources.folders import Layout
    from cmsspark.sources.reader import Reader

    of_jobs = sorted({*streams} & {*STREAMS_OF_JOBS})
    if of_jobs:
        raise UsageError(
            f"{', '.join(of_jobs)} has jobs, and no accesses to files",
            found=f"streams: {', '.join(streams)}",
            next_step='notebook.table("dbs_condor", DAY) has its jobs by dataset, site and app',
        )
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
    inputs = resolve(request, Layout.of(settings, root), files)
    opened = open_snapshots(files, inputs.dbs, inputs.replicas, settings.cache_dir / "catalogue")
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE)
    assert opened.catalogue is not None
    catalogue = ship(spark, opened.catalogue)
    replicas = ship(spark, opened.replicas) if opened.replicas else None
    context = TaskContext(request.day, catalogue, replicas, key, Reader, single_accesses=True)
    rows = scan(spark, stream_files(inputs), context)
    blocks = dump_table(spark, inputs.dbs, "BLOCKS", ("block_id", "block_name")).dropDuplicates(["block_id"])
    return (
        rows.join(blocks, "block_id", "left")
        .withColumn("cpu_seconds", F.col("cpu_ms") / F.lit(1000.0))
        .withColumn("wall_seconds", F.col("wall_ms") / F.lit(1000.0))
        .drop("block_id", "cpu_ms", "wall_ms")
    )


def table(name: str, day: str, *, fout: str | None = None, settings_file: str | None = None) -> DataFrame:
    """Return the current result of a stored table for ``day``.

    ``schemas/tables/NAME.yaml`` describes the columns. Raises InputMissing (66), which names the stored
    days, if this day is not stored, and UsageError (2) for an unknown table.

    Example:
        >>> usage = notebook.table("data_aggregation", "2026-01-15", fout="/data/results")
        >>> usage.groupBy("site_tier").sum("nacc").count() > 1
        True
    """
    from cmsspark.schemas import stored_table
    from cmsspark.store.results import current, spark_location

    spark = session()
    store = store_of(fout, settings_of(settings_file))
    current_table = current(files_for(store, spark), store, job_of_table(name).name, name, days.parse_day(day))
    read = spark.read.schema(stored_table(name).spark())
    if current_table.manifest.tables[name].format == "csv":
        return read.csv(spark_location(current_table.path), header=True, escape='"', multiLine=True)
    return read.parquet(spark_location(current_table.path))
