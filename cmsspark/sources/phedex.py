"""PhEDEx block replicas: the site and kind of storage of each replica of a block (rule 20)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from cmsspark.base.buffers import array, scalar
from cmsspark.base.names import site_and_kind
from cmsspark.base.schemas import input_table
from cmsspark.sources.formats.sqoop_csv import read_table

#: Columns of the snapshot that are read.
COLUMNS: Final = ("block_name", "node_name", "br_node_files")


def read_disk_replicas(source: IO[bytes], name: str) -> Iterator[Any]:
    """``pyarrow.Table`` pieces of (``block_name``, ``site``): the replicas in one part
    of a snapshot that are on disk and hold at least one file. A block appears twice for
    a site with two disk nodes. Raises DataError (65).
    """
    for piece in read_table(source, input_table("phedex/block_replicas"), COLUMNS, name):
        yield on_disk(piece)


def on_disk(piece: Any) -> Any:
    """Return the (``block_name``, ``site``) of a ``pyarrow.Table`` of :data:`COLUMNS`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nodes = piece["node_name"].combine_chunks().dictionary_encode()
    pairs = [site_and_kind(node) for node in nodes.dictionary.to_pylist()]
    sites = array([site if kind == "disk" else None for site, kind in pairs], "string")
    site = sites.take(nodes.indices)
    is_on_disk = pc.and_(pc.greater(piece["br_node_files"], scalar(0, "long")), pc.is_valid(site))
    is_complete = pc.and_(is_on_disk, pc.is_valid(piece["block_name"]))
    return pa.table({"block_name": piece["block_name"], "site": site}).filter(is_complete)
