"""The join with DBS and PhEDEx by Spark's shuffle, for a catalogue that is too large for the memory of one host.

It joins on the hashes that the catalogue uses, and gives the same cells. No join multiplies an access: files are unique
by (hash, check), replicas by (block, site).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cmsspark.access import Remote
from cmsspark.kernel.catalogue import check_hash, hashes_of
from cmsspark.kernel.pre_aggregate import ACCESS, BIN, COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def attach(
    hashed: DataFrame, files: DataFrame, datasets: DataFrame, blocks: DataFrame, replicas: DataFrame | None
) -> DataFrame:
    """Return the rows of a hashed scan with their datasets and remoteness, as a scan with the catalogue returns them.

    ``files`` (lfn, block_id, dataset_id, file_id), ``datasets`` (dataset_id, dataset_name), ``blocks`` (block_id,
    block_name), ``replicas`` (block_name, site): disk replicas only; without them remoteness by replica stays null.
    Keys need not be unique; nulls match nothing.
    """
    from pyspark.sql import functions as F

    # Left joins with unique keys on the right: each row on the left appears once.
    joined = hashed.join(unique_files(files, datasets), ["hash", "check"], "left")
    by_replica = F.lit(None).cast("boolean")
    if replicas is not None:
        present = (
            blocks.join(replicas, "block_name", "inner")
            .select("block_id", F.col("site").alias("site_name"), F.lit(True).alias("is_present"))
            .distinct()
        )
        joined = joined.join(present, ["block_id", "site_name"], "left")
        by_replica = F.col("is_present").isNull()
    unmatched = (F.col("kind") == ACCESS) & F.col("joined_name").isNull()
    remote = (
        F.when(F.col("block_remote") == Remote.YES, True)
        .when(F.col("block_remote") == Remote.NO, False)
        .when(F.col("block_remote") == Remote.BY_REPLICA, by_replica)
    )
    changed = {
        "kind": F.when(unmatched, BIN).otherwise(F.col("kind")),
        "dataset_name": F.col("joined_name"),
        "site_name": F.when(~unmatched, F.col("site_name")),
        "app": F.when(unmatched, F.col("unmatched_bin")).otherwise(F.col("app")),
        "user": F.when(~unmatched, F.col("user")),
        "remote_nacc": F.when(~unmatched, F.when(remote, F.col("nacc")).when(~remote, F.lit(0))).cast("long"),
    }
    # A bin counts records only. Sizes of files that are not in DBS are not summed, so they cannot exceed 64 bits.
    changed |= {name: F.when(~unmatched, F.col(name)) for name in ("read_bytes", "cpu_ms", "wall_ms")}
    return joined.select(*(changed.get(name, F.col(name)).alias(name) for name, _ in COLUMNS))


def unique_files(files: DataFrame, datasets: DataFrame) -> DataFrame:
    """Return (hash, check, block_id, joined_name) with each file once, without orphans.

    Of several rows with one name the larger file_id counts (rule 18).
    """
    from pyspark.sql import functions as F

    named = (
        datasets.where(F.col("dataset_name").isNotNull())
        .groupBy("dataset_id")
        .agg(F.min("dataset_name").alias("joined_name"))
    )
    hashed = files.where(F.col("lfn").isNotNull()).mapInArrow(
        _hash_names, "hash bigint, check bigint, block_id bigint, dataset_id bigint, file_id bigint"
    )
    in_datasets = hashed.join(named, "dataset_id", "inner")
    newest = F.max_by(F.struct("block_id", "joined_name"), F.coalesce("file_id", F.lit(-1)))
    return in_datasets.groupBy("hash", "check").agg(newest.alias("newest")).select("hash", "check", "newest.*")


def _hash_names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    for batch in batches:
        names = batch.column("lfn").cast(pa.binary()).to_pylist()
        hashes = hashes_of(names, len(names)).view(np.int64)
        checks = hashes_of(names, len(names), check_hash).view(np.int64)
        rest = [batch.column(name) for name in ("block_id", "dataset_id", "file_id")]
        yield pa.RecordBatch.from_arrays(
            [pa.array(hashes), pa.array(checks), *rest], ["hash", "check", "block_id", "dataset_id", "file_id"]
        )
