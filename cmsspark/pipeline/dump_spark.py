"""A job on dumps in Spark: its table from DataFrames, or from frames that Spark makes and the job's ``build`` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from cmsspark.pipeline.catalogue_snapshots import open_part
from cmsspark.pipeline.rucio_parts import read_rses
from cmsspark.runners import datasets, replicas
from cmsspark.schemas import stored_table
from cmsspark.sources.dumps import Dump
from cmsspark.storage import Files

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.pipeline.dump_day import DumpJob
    from cmsspark.pipeline.request import JobRequest
    from cmsspark.runners.rucio_tables import RucioTables
    from cmsspark.store.results import StagedRun


def write_by_spark(
    job: DumpJob,
    request: JobRequest,
    spark: SparkSession,
    files: Files,
    dumps: Sequence[Dump],
    staged: StagedRun,
    more: Mapping[str, pl.DataFrame],
) -> tuple[int, dict[str, Any]]:
    """Write the job's table into the run; return its rows, and entries of the manifest. Raises DataError (65)."""
    tables = job.tables(spark, dumps)
    rucio: RucioTables | None = None
    rse_counts = None
    for dump in (dump for dump in dumps if dump.kind == "rucio"):
        from cmsspark.runners.rucio_tables import rucio_tables

        rses, rse_counts = read_rses(dump, request.settings.rses, partial(_opened, files))
        rucio = rucio_tables(spark, dump, rses, request.day)
        tables["replicas"] = rucio.replicas()
    manifest: dict[str, Any] = {}
    if rucio is not None:
        # Before the table: it says whether too many rows are damaged.
        counts = rucio.counts() | ({"RSES": rse_counts} if rse_counts else {})
        of_tables = {table: counts[table].as_dict() for table in sorted(counts)}
        manifest["rucio"] = {"tables": of_tables, "unattached_blocks": rucio.unattached()}
    if job.build_in_spark is not None:
        rows = job.build_in_spark(tables, request.day)
        written = staged.write(rows, job.name, request.fmt)
    else:
        written, of_job = _write_frames(job, request, tables, rucio, staged, more)
        manifest |= of_job
    if rucio is not None:
        rucio.close()
    return written, manifest


def _write_frames(
    job: DumpJob,
    request: JobRequest,
    tables: dict[str, DataFrame],
    rucio: RucioTables | None,
    staged: StagedRun,
    more: Mapping[str, pl.DataFrame],
) -> tuple[int, dict[str, Any]]:
    """Collect the frames that ``build`` takes, which have a row for a dataset or so, and write its rows."""
    from cmsspark.kernel import dump_frames

    frames = {**_frames(job, tables), **more}
    if rucio is not None and job.rucio_frames:
        frames |= _rucio_frames(job, rucio, tables)
    rows = dump_frames.to_arrow(job.build(frames, request.day), stored_table(job.name).arrow())
    of_job = job.manifest(frames) if job.manifest else {}
    if request.fmt == "parquet":
        return staged.write_arrow(rows, job.name), of_job
    spark = next(iter(tables.values())).sparkSession
    frame = spark.createDataFrame(rows.to_pylist(), stored_table(job.name).spark())
    return staged.write(frame, job.name, request.fmt), of_job


def _frames(job: DumpJob, tables: dict[str, DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames of :func:`cmsspark.kernel.dump_frames.read_frames`."""
    if "differences" in job.rucio_frames:
        return {}
    frames = {name: collected(rows) for name, rows in tables.items() if name not in ("FILES", "replicas")}
    if "FILES" in tables:
        known = datasets.identities(tables["DATASETS"])
        if job.block_contents is None:
            frames["contents"] = collected(datasets.contents(tables["FILES"], known))
        else:
            of_blocks = datasets.block_contents(tables["FILES"], tables["BLOCKS"], known, job.block_contents == "valid")
            frames["block_contents"] = collected(of_blocks)
    if "replicas" in tables:
        frames["presence"] = collected(replicas.presence(tables["replicas"]))
    return frames


def _rucio_frames(job: DumpJob, rucio: RucioTables, tables: dict[str, DataFrame]) -> dict[str, pl.DataFrame]:
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


@contextmanager
def _opened(files: Files, path: str) -> Iterator[IO[bytes]]:
    with open_part(files, path) as stream:
        yield stream
