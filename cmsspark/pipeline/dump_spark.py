"""A job on dumps in Spark: its table from DataFrames, or from frames that Spark makes and the job's ``build`` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cmsspark.pipeline.catalogue_snapshots import opened
from cmsspark.pipeline.rucio_parts import read_rses
from cmsspark.runners import dbs_rows, dump_scan
from cmsspark.runners.dump_tables import dump_table
from cmsspark.schemas import stored_table
from cmsspark.sources.dumps import Dump
from cmsspark.sources.registry import REPLICAS
from cmsspark.storage import Files

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.pipeline.dump_parts import DumpTable
    from cmsspark.pipeline.request import JobRequest
    from cmsspark.runners.rucio_tables import RucioTables
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
    from cmsspark.kernel import dump_frames

    rucio: RucioTables | None = None
    manifest: dict[str, Any] = {}
    for dump in (dump for dump in dumps if dump.kind == "rucio"):
        from cmsspark.runners.rucio_tables import rucio_tables

        rses, rse_counts = read_rses(dump, request.settings.rses, partial(opened, files))
        rucio = rucio_tables(spark, dump, rses, request.day)
        # Before the table: it says whether too many rows are damaged.
        counts = rucio.counts() | {"RSES": rse_counts}
        of_tables = {table: counts[table].as_dict() for table in sorted(counts)}
        manifest["rucio"] = {"tables": of_tables, "unattached_blocks": rucio.unattached()}
    frames = {**_frames(job, spark, dumps, rucio), **more}
    if rucio is not None:
        rucio.close()
    schema = stored_table(job.name)
    rows = dump_frames.to_arrow(job.build(frames, request.day), schema.arrow())
    manifest |= job.manifest(frames) if job.manifest else {}
    if request.fmt == "parquet":
        return staged.write_arrow(rows, schema.name), manifest
    return staged.write(dump_scan.as_dataframe(spark, rows, schema), schema.name, request.fmt), manifest


def _frames(
    job: DumpTable, spark: SparkSession, dumps: Sequence[Dump], rucio: RucioTables | None
) -> dict[str, pl.DataFrame]:
    """The frames of :func:`cmsspark.kernel.dump_frames.read_frames`, and what the job reads instead or beside them."""
    dbs = {
        name: dump_table(spark, dump, name, columns)
        for dump in dumps
        for name, columns in (job.dbs.items() if dump.kind == "dbs" else ())
    }
    if job.block_contents:
        is_valid_only = job.block_contents == "valid"
        known = dbs_rows.identities(dbs["DATASETS"])
        of_blocks = dbs_rows.block_contents(dbs["FILES"], dbs["BLOCKS"], known, is_valid_only=is_valid_only)
        frames = {name: collected(dbs[name]) for name in ("DATASETS", "BLOCKS")}
        return {**frames, "block_contents": collected(of_blocks)}
    sources = job.sources(spark, list(dumps))
    if rucio is None:
        return dump_scan.read_frames(spark, sources)
    frames = {}
    if not job.rucio_frames or "last_access" in job.rucio_frames:
        sources[REPLICAS] = rucio.source()
        frames = dump_scan.read_frames(spark, sources, storage=rucio.rses.storage())
    return frames | (_rucio_frames(job, rucio, dbs) if job.rucio_frames else {})


def _rucio_frames(job: DumpTable, rucio: RucioTables, tables: Mapping[str, DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames that only Rucio gives."""
    import numpy as np
    import polars as pl

    from cmsspark.kernel import rucio_frames
    from cmsspark.kernel.block_replicas import COUNTS, LARGEST, SUMS
    from cmsspark.runners import rucio_tables

    nothing = {name: np.zeros(0, np.int64) for name in ("rse", *COUNTS, *SUMS, *LARGEST)}
    rses = [rse.name for rse in rucio.rses.rses]
    sums = collected(rucio.dataset_sums())
    frames = {"rse_sums": rucio_frames.rse_sums([sums.to_arrow()], nothing, rses, rucio.rses.storage())}
    if "last_access" in job.rucio_frames and rucio.dids is not None:
        found = collected(rucio.dids)
        of_files = found.filter(pl.col("kind") == rucio_tables.FILE)
        of_others = found.filter(pl.col("kind") == rucio_tables.DATASET)
        named = sums.select("dataset_name").drop_nulls().unique()
        blocks = named.join(of_files.select("dataset_name", "accessed_ms"), "dataset_name", "left")
        hashes = of_others["hash"].to_numpy().view(np.uint64)
        frames["last_access"] = rucio_frames.last_accesses(
            frames["rse_sums"], blocks["dataset_name"].to_arrow(), blocks["accessed_ms"].fill_null(-1).to_numpy(),
            (hashes, of_others["accessed_ms"].to_numpy()),
        )  # fmt: skip
    if "differences" in job.rucio_frames:
        from cmsspark.runners.differing_files import differing_files

        frames["differences"] = collected(differing_files(rucio.files, tables))
    return frames


def collected(rows: DataFrame) -> pl.DataFrame:
    """Return the rows of a DataFrame as a frame of this process, passed as Arrow."""
    import polars as pl
    import pyarrow as pa

    from cmsspark.runners.merge_task import decode_rows

    packed = rows.mapInArrow(_encoded, "packed binary").collect()
    schema = pa.schema([(field.name, _ARROW[field.dataType.typeName()]) for field in rows.schema.fields])
    tables = [schema.empty_table(), *(decode_rows(row["packed"]).cast(schema) for row in packed)]
    found = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(found, pl.DataFrame)
    return found


_ARROW = {
    "string": "string", "long": "int64", "integer": "int32", "double": "float64", "boolean": "bool", "date": "date32",
}  # fmt: skip


def _encoded(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    from cmsspark.runners.merge_task import encode_rows

    for batch in batches:
        yield pa.record_batch([pa.array([encode_rows(pa.Table.from_batches([batch]))], pa.binary())], names=["packed"])
