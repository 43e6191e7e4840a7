"""PhEDEx block replicas: what of which block lies at which site, on what kind of storage (rule 20)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final

from cmsspark.buffers import array, scalar
from cmsspark.names import site_and_kind
from cmsspark.runners.dump_tables import dump_table
from cmsspark.runners.spark_columns import milliseconds, node_kind, node_site
from cmsspark.schemas import input_table
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.registry import REPLICAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = (
    "dataset_name",
    "block_name",
    "block_files",
    "block_bytes",
    "node_name",
    "br_node_files",
    "br_node_bytes",
    "replica_time_create",
    "replica_time_update",
)


def replicas(spark: SparkSession, dump: Dump, feed: str = "auto") -> DataFrame:
    """One row for each row of the snapshot, that is for each (block, node).

    Columns: ``dataset_name``, ``block_name``, ``node_name``, ``site_name``, ``kind`` (disk, tape, buffer);
    ``block_files``, ``block_bytes`` of the whole block; ``node_files``, ``node_bytes`` really at the node;
    ``created_ms``, ``updated_ms`` of the replica (UTC). Any may be null.
    """
    from pyspark.sql import functions as F

    return dump_table(spark, dump, REPLICAS, _COLUMNS, feed).select(
        "dataset_name",
        "block_name",
        "node_name",
        node_site("node_name").alias("site_name"),
        node_kind("node_name").alias("kind"),
        "block_files",
        "block_bytes",
        F.col("br_node_files").alias("node_files"),
        F.col("br_node_bytes").alias("node_bytes"),
        milliseconds("replica_time_create").alias("created_ms"),
        milliseconds("replica_time_update").alias("updated_ms"),
    )


def disk_replicas_of(source: IO[bytes], name: str) -> Iterator[Any]:
    """``pyarrow.Table`` pieces of (``block_name``, ``site``): the replicas in one part of a snapshot that are on disk
    and hold at least one file. One block may come twice for a site with two disk nodes. Raises DataError (65).
    """
    for piece in read_table(
        source, input_table("phedex/block_replicas"), ["block_name", "node_name", "br_node_files"], name
    ):
        yield _on_disk(piece)


def _on_disk(piece: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    nodes = piece["node_name"].combine_chunks().dictionary_encode()
    pairs = [site_and_kind(node) for node in nodes.dictionary.to_pylist()]
    sites = array([site if kind == "disk" else None for site, kind in pairs], "string")
    site = sites.take(nodes.indices)
    here = pc.and_(pc.greater(piece["br_node_files"], scalar(0, "long")), pc.is_valid(site))
    wanted = pc.and_(here, pc.is_valid(piece["block_name"]))
    return pa.table({"block_name": piece["block_name"], "site": site}).filter(wanted)
