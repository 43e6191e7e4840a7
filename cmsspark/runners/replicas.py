"""From block replicas to presence, in Spark: one row for each dataset, site and kind of storage (rule 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cmsspark.names import KINDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def presence(replicas: DataFrame) -> DataFrame:
    """Return what each site holds of each dataset: one row for each (``dataset_name``, ``site_name``, ``kind``).

    ``present_file_count``, ``present_bytes``: the sums over all nodes of that kind. ``present_block_count``: blocks
    with at least one file there. ``full_block_count``: blocks that are complete on a node of the site, of any kind.
    ``newest_replica_ms``: creation time of the newest replica, Unix milliseconds (UTC), or null. A repeated (block,
    node) counts once, with its largest values. A replica without a node counts as disk at a null site.
    """
    from pyspark.sql import functions as F

    # All groups below include the dataset: partitioned by it, the rows are shuffled once.
    moved = replicas.withColumn("kind", F.coalesce("kind", F.lit("disk"))).repartition("dataset_name")
    measures = ("block_files", "block_bytes", "node_files", "node_bytes", "created_ms")
    unique = moved.groupBy("dataset_name", "block_name", "node_name", "site_name", "kind").agg(
        *(F.max(name).alias(name) for name in measures)
    )
    blocks = unique.groupBy("dataset_name", "site_name", "block_name").agg(
        F.max(_is_full()).alias("is_full"), *(_of_block(kind).alias(kind) for kind in KINDS)
    )
    sites = blocks.groupBy("dataset_name", "site_name").agg(
        F.count_if("is_full").alias("full_block_count"), *(_of_site(kind).alias(kind) for kind in KINDS)
    )
    rows = sites.select("dataset_name", "site_name", "full_block_count", F.inline(F.array(*KINDS)))
    return rows.where(F.col("replica_count") > 0).drop("replica_count")


def with_completeness(present: DataFrame, replicas: DataFrame, dbs_blocks: DataFrame) -> DataFrame:
    """Return :func:`presence` with ``block_count`` and ``is_complete``: each block in DBS or the snapshot is full.

    ``dbs_blocks``: ``dataset_name``, ``block_name``. Completeness is a property of the site: its rows of all kinds
    agree.
    """
    from pyspark.sql import functions as F

    named = dbs_blocks.unionByName(replicas.select("dataset_name", "block_name"))
    counts = named.groupBy("dataset_name").agg(F.count_distinct("block_name").alias("block_count"))
    joined = present.join(counts, "dataset_name", "left")
    is_complete = (F.col("block_count") > 0) & (F.col("full_block_count") == F.col("block_count"))
    return joined.withColumn("is_complete", F.coalesce(is_complete, F.lit(False)))


def _is_full() -> Column:
    """Whether the node has the whole block, by files and by bytes; false where a number is null."""
    from pyspark.sql import functions as F

    files = F.col("node_files") >= F.col("block_files")
    size = F.col("node_bytes") >= F.col("block_bytes")
    return F.coalesce(files & size & F.col("block_name").isNotNull(), F.lit(False))


def _of_block(kind: str) -> Column:
    """Return what one site holds of one block on one kind of storage."""
    from pyspark.sql import functions as F

    is_kind = F.col("kind") == kind
    return F.struct(
        F.count_if(is_kind).alias("replica_count"),
        F.sum(F.when(is_kind, F.col("node_files"))).alias("files"),
        F.sum(F.when(is_kind, F.col("node_bytes"))).alias("bytes"),
        F.max(F.when(is_kind, F.col("created_ms"))).alias("newest_ms"),
    )


def _of_site(kind: str) -> Column:
    """Return what one site holds of one dataset on one kind of storage; counts and bytes are 0 instead of null."""
    from pyspark.sql import functions as F

    return F.struct(
        F.lit(kind).alias("kind"),
        F.sum(f"{kind}.replica_count").alias("replica_count"),
        F.coalesce(F.sum(f"{kind}.files"), F.lit(0)).alias("present_file_count"),
        F.coalesce(F.sum(f"{kind}.bytes"), F.lit(0)).alias("present_bytes"),
        F.count_if(F.col(f"{kind}.files") > 0).alias("present_block_count"),
        F.max(f"{kind}.newest_ms").alias("newest_replica_ms"),
    )
