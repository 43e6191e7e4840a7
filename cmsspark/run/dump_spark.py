"""A job on dumps in Spark: its table from DataFrames, or from frames that Spark makes and the job's ``build`` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cmsspark.base import dates
from cmsspark.base.schemas import stored_table
from cmsspark.dumps import dbs_rows, dump_scan
from cmsspark.dumps.dump_tables import table_source
from cmsspark.dumps.rucio_parts import accessed_before_ms, read_rses
from cmsspark.dumps.rucio_scan import TABLES, RucioScan, counts_of
from cmsspark.engines.session import static_plans
from cmsspark.engines.tasks import weight_of
from cmsspark.filesystems.storage import Files
from cmsspark.run.catalogue_snapshots import opened
from cmsspark.sources.dumps import Dump
from cmsspark.sources.rucio import TableCounts

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.dumps.dump_parts import DumpTable
    from cmsspark.run.request import JobRequest
    from cmsspark.store.results import StagedRun


def write_by_spark(
    job: DumpTable,
    request: JobRequest,
    spark: SparkSession,
    files: Files,
    dumps: Sequence[Dump],
    staged: StagedRun,
    more: Mapping[str, pl.DataFrame],
) -> tuple[int, dict[str, Any]]:
    """Write the job's table into the run; return its rows, and entries of the manifest. Raises DataError (65)."""
    from cmsspark.dumps import dump_frames

    manifest: dict[str, Any] = {}
    rucio = next((dump for dump in dumps if dump.kind == "rucio"), None)
    if job.block_contents:
        frames = _block_frames(job, spark, dumps)
    elif rucio is None:
        frames = dump_scan.read_frames(spark, job.sources(spark, list(dumps)))
    else:
        frames, manifest["rucio"] = _with_rucio(job, request, spark, files, dumps, rucio)
    frames |= more
    schema = stored_table(job.name)
    rows = dump_frames.to_arrow(job.build(frames, request.day), schema.arrow())
    manifest |= job.manifest(frames) if job.manifest else {}
    if request.fmt == "parquet":
        return staged.write_arrow(rows, schema.name), manifest
    return staged.write(dump_scan.as_dataframe(spark, rows, schema), schema.name, request.fmt), manifest


def _block_frames(job: DumpTable, spark: SparkSession, dumps: Sequence[Dump]) -> dict[str, pl.DataFrame]:
    """DATASETS as it is, and ``block_sums``: the driver holds no block."""
    dbs = {
        name: table_source(spark, dump, name, columns).table()
        for dump in dumps
        for name, columns in (job.dbs.items() if dump.kind == "dbs" else ())
    }
    is_valid_only = job.block_contents == "valid"
    identities = dbs_rows.identities(dbs["DATASETS"])
    of_blocks = dbs_rows.block_sums(dbs["FILES"], dbs["BLOCKS"], identities, is_valid_only=is_valid_only)
    weight = sum(
        weight_of(file.path, file.size) for dump in dumps for listed in dump.tables.values() for file in listed
    )
    # The plan has few exchanges: adaptive execution would run a job for each.
    with static_plans(spark, shuffle_partitions=dump_scan.key_count(weight)):
        return {"DATASETS": collected(dbs["DATASETS"]), "block_sums": collected(of_blocks)}


def _with_rucio(
    job: DumpTable, request: JobRequest, spark: SparkSession, files: Files, dumps: Sequence[Dump], dump: Dump
) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """Return the frames of a job that reads Rucio, and the entry of the manifest."""
    from cmsspark.dumps import rucio_blocks, rucio_row_frames

    rses, rse_counts = read_rses(dump, request.settings.rses, partial(opened, files))
    limit = accessed_before_ms(job.rucio_frames, request.day)
    scan = RucioScan(spark, dump, rses, dates.timestamp_ms_bounds(request.day), accessed_before_ms=limit)
    # As by processes: what lies where is not made where no frame needs it.
    has_presence = not job.rucio_frames or "last_access" in job.rucio_frames
    tables = dump_scan.RucioTables(scan, has_presence, is_check="differences" in job.rucio_frames)
    done = dump_scan.read_rows(spark, job.sources(spark, list(dumps)), storage=rses.storage(), rucio=tables)
    # Before the table: it says whether too many rows are damaged.
    read = {table: TableCounts() for table in TABLES if table in dump.tables}
    counts = read | counts_of(done.others) | {"RSES": rse_counts}
    unattached = sum(int(rows.columns["count"][0]) for rows in done.others if rows.what == rucio_blocks.UNATTACHED)
    count_rows = {name: count.as_dict() for name, count in sorted(counts.items())}
    entry = {"tables": count_rows, "unattached_blocks": unattached}
    names = [rse.name for rse in rses.rses]
    more = rucio_row_frames.rucio_frames(job.rucio_frames, done.others, done.names, names, rses.storage())
    return done.frames | more, entry


def collected(rows: DataFrame) -> pl.DataFrame:
    """Return the rows of a DataFrame as a frame of this process, passed as Arrow."""
    import polars as pl
    import pyarrow as pa

    from cmsspark.engines.merge_task import decode_rows

    packed = rows.mapInArrow(_encoded, "packed binary").collect()
    kinds = {**_ARROW, "decimal": pa.decimal128(38, 0)}
    schema = pa.schema([(field.name, kinds[field.dataType.typeName()]) for field in rows.schema.fields])
    tables = [schema.empty_table(), *(decode_rows(row["packed"]).cast(schema) for row in packed)]
    frame = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(frame, pl.DataFrame)
    return frame


_ARROW = {
    "string": "string", "long": "int64", "integer": "int32", "double": "float64", "boolean": "bool", "date": "date32",
}  # fmt: skip


def _encoded(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    from cmsspark.engines.merge_task import encode_rows

    for batch in batches:
        yield pa.record_batch([pa.array([encode_rows(pa.Table.from_batches([batch]))], pa.binary())], names=["packed"])
