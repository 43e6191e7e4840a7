"""The join with DBS and PhEDEx by Spark's shuffle, for a catalogue that is too large
for the memory of one host.

It joins on the hashes that the catalogue uses, and gives the same cells. No join
multiplies an access: files are unique by (hash, check), replicas by (block, site).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.access import Remote
from cmsspark.base.buffers import flags, from_numpy, is_there
from cmsspark.base.names import DERIVED
from cmsspark.counting.catalogue import check_hash, hashes_in, name_hash
from cmsspark.counting.pre_aggregate import ACCESS, COLUMNS, UNMATCHED
from cmsspark.counting.site_pairs import PAIR, SCAN_COLUMNS
from cmsspark.sources import phedex
from cmsspark.sources.registry import STREAMS_NAMING_READERS, STREAMS_OF_JOB_ROWS
from cmsspark.sources.rses import StorageSites, sites_by_storage
from cmsspark.sources.values import UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Columns of files, blocks and disk replicas, as a Spark schema. ``block``: the hash of
#: the block's name.
HASHED_FILES: Final = (
    "hash bigint, check bigint, block_id bigint, dataset_id bigint, file_id bigint"
)
HASHED_BLOCKS: Final = "block_id bigint, block bigint"
DISK_REPLICAS: Final = "block bigint, site string"


def attach(
    hashed: DataFrame,
    files: DataFrame,
    datasets: DataFrame,
    blocks: DataFrame,
    replicas: DataFrame | None,
) -> DataFrame:
    """Return the rows of a hashed scan with their datasets and remoteness, as a scan
    with the catalogue returns them.

    ``files`` (:data:`HASHED_FILES`), ``datasets`` (dataset_id, dataset_name),
    ``blocks`` (:data:`HASHED_BLOCKS`), ``replicas`` (:data:`DISK_REPLICAS`); without
    them remoteness by replica stays null. Keys need not be unique; nulls match nothing.
    """
    from pyspark.sql import functions as F

    # Left joins with unique keys on the right: each row on the left appears once.
    joined = hashed.join(unique_files(files, datasets), ["hash", "check"], "left")
    by_replica = F.lit(None).cast("boolean")
    if replicas is not None:
        present = (
            blocks.join(replicas, "block", "inner")
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
        "kind": F.when(unmatched, UNMATCHED).otherwise(F.col("kind")),
        "dataset_name": F.col("joined_name"),
        "app": F.when(unmatched, F.col("prefix")).otherwise(F.col("app")),
        "user": F.when(~unmatched, F.col("user")),
        "remote_nacc": F.when(
            ~unmatched, F.when(remote, F.col("nacc")).when(~remote, F.lit(0))
        ).cast("long"),
    }
    # Sizes of files that are not in DBS are not summed, so they cannot exceed 64 bits.
    changed |= {
        name: F.when(~unmatched, F.col(name))
        for name in ("read_bytes", "cpu_ms", "wall_ms", "detail")
    }
    rows = joined.select(*(changed.get(name, F.col(name)).alias(name) for name, _ in COLUMNS))
    return _with_site_pairs(rows)


def with_jobs_sites(replicas: DataFrame, sites: StorageSites) -> DataFrame:
    """Return replicas (:data:`DISK_REPLICAS`), and each once more for the sites whose
    jobs have it as their own (rule 72).
    """
    from pyspark.sql import functions as F

    pairs = sites_by_storage(sites)
    if not pairs:
        return replicas
    of_jobs = F.lit(None).cast("array<string>")
    for storage, names in pairs.items():
        of_jobs = F.when(
            F.col("site") == storage, F.array(*(F.lit(name) for name in names))
        ).otherwise(of_jobs)
    more = replicas.select("block", F.explode(of_jobs).alias("site"))
    return replicas.unionByName(more)


def _with_site_pairs(rows: DataFrame) -> DataFrame:
    """Return the rows, and for each access of a stream with pairs of sites a row of its
    pair (rule 63).

    ``detail`` of accesses is the reader's site, or the job of a row of a job; of the
    first it is null in the result.
    """
    from pyspark.sql import functions as F

    is_access = F.col("kind") == ACCESS
    names = [name for name, _ in COLUMNS]
    as_pair = {
        "kind": F.lit(PAIR),
        SCAN_COLUMNS["data_tier"]: F.split("dataset_name", "/").getItem(DERIVED["data_tier"].part),
        SCAN_COLUMNS["reader_site"]: F.col("detail"),
        SCAN_COLUMNS["source_site"]: F.when(F.col("site_name") != UNKNOWN, F.col("site_name")),
        **dict.fromkeys(("app", "detail"), F.lit(None).cast("string")),
    }
    keeps_detail = ~is_access | F.col("stream").isin(*STREAMS_OF_JOB_ROWS)
    row = F.struct(
        *(
            F.when(keeps_detail, F.col(name)).alias(name) if name == "detail" else name
            for name in names
        )
    )
    pair = F.struct(*(as_pair.get(name, F.col(name)).alias(name) for name in names))
    has_pair = is_access & F.col("stream").isin(*STREAMS_NAMING_READERS)
    every = F.when(has_pair, F.array(row, pair)).otherwise(F.array(row))
    return rows.select(F.explode(every).alias("row")).select("row.*")


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
    in_datasets = files.join(named, "dataset_id", "inner")
    newest = F.max_by(F.struct("block_id", "joined_name"), F.coalesce("file_id", F.lit(-1)))
    return (
        in_datasets.groupBy("hash", "check")
        .agg(newest.alias("newest"))
        .select("hash", "check", "newest.*")
    )


def hashed_files(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows (:data:`HASHED_FILES`) of FILES that have a name; of
    ``logical_file_name``, ``block_id``, ``dataset_id``, ``file_id``.
    """
    import pyarrow as pa

    for table in tables:
        named = table.filter(flags(is_there(table["logical_file_name"])))
        names = named["logical_file_name"]
        hashes = [
            from_numpy(hashes_in(names, hash_of).view(np.int64))
            for hash_of in (name_hash, check_hash)
        ]
        numbers = named.select(["block_id", "dataset_id", "file_id"])
        rows = pa.table([*hashes, *numbers.columns], ["hash", "check", *numbers.column_names])
        yield from rows.to_batches()


def hashed_blocks(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows (:data:`HASHED_BLOCKS`) of BLOCKS that have a name; of
    ``block_id``, ``block_name``.
    """
    import pyarrow as pa

    for table in tables:
        named = table.filter(flags(is_there(table["block_name"])))
        hashes = from_numpy(hashes_in(named["block_name"]).view(np.int64))
        yield from pa.table([named["block_id"], hashes], ["block_id", "block"]).to_batches()


def disk_replicas(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the disk replicas (:data:`DISK_REPLICAS`) in tables of ``phedex.COLUMNS``."""
    import pyarrow as pa

    for table in tables:
        replicas = phedex.on_disk(table)
        hashes = from_numpy(hashes_in(replicas["block_name"]).view(np.int64))
        yield from pa.table([hashes, replicas["site"]], ["block", "site"]).to_batches()
