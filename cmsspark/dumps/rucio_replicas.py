"""Replicas of blocks on disk by Rucio: for the index of this process, or for the
shuffle join of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cmsspark.base.buffers import array, from_numpy
from cmsspark.dumps.dump_plan import Transport, disk_sites, read_disk_replicas
from cmsspark.dumps.keyed_rows import KeyedRows, unpack
from cmsspark.dumps.process_transport import Part, ProcessTransport, Span, read_spans
from cmsspark.dumps.rucio_rows import DISK_REPLICAS, READ_COUNTS
from cmsspark.dumps.rucio_scan import RucioScan, counts_by_table
from cmsspark.engines import shuffle_join

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cmsspark.dumps.spark_transport import SparkTransport


def collect_disk_replicas(transport: Transport, scan: RucioScan) -> Iterator[pa.Table]:
    """Yield tables of ``block`` (the hash of its name, signed) and ``site``: the
    replicas on disk, each once.

    This process holds 16 bytes for each. Raises DataError (65) if too many rows are damaged.
    """
    rows = transport.collect(read_disk_replicas(transport, scan))
    counts_by_table(rows)
    yield from _tables(rows, disk_sites(scan))


def spill_disk_replicas(transport: ProcessTransport, scan: RucioScan) -> list[Part]:
    """Return parts with the tables of :func:`collect_disk_replicas`, whose rows lie on disk.

    Raises DataError (65) if too many rows are damaged.
    """
    spans = read_disk_replicas(transport, scan)
    counts_by_table(read_spans([span for span in spans if span.kind == READ_COUNTS]))
    return [
        partial(_read_tables, span, disk_sites(scan))
        for span in spans
        if span.kind == DISK_REPLICAS
    ]


def _read_tables(span: Span, sites: Sequence[str]) -> Iterator[pa.Table]:
    return _tables(read_spans([span]), sites)


def persist_disk_replicas(
    transport: SparkTransport, scan: RucioScan
) -> tuple[DataFrame, DataFrame]:
    """Return rows of ``shuffle_join.DISK_REPLICAS``, each once, and the persisted rows
    that one Spark job made them of.

    Raises DataError (65) if too many rows are damaged.
    """
    from pyspark import StorageLevel

    with transport.running():
        rows = read_disk_replicas(transport, scan).persist(StorageLevel.MEMORY_AND_DISK)
        counts = rows.where(f"kind = '{READ_COUNTS}'").select("packed").collect()
    counts_by_table(unpack(0, READ_COUNTS, bytes(row["packed"])) for row in counts)
    return rows.mapInArrow(
        partial(_unpack_replicas, disk_sites(scan)), shuffle_join.DISK_REPLICAS
    ), rows


def _unpack_replicas(
    sites: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of replicas on disk as columns. Runs in Python workers."""
    from cmsspark.dumps.spark_transport import unpack_batches

    for table in _tables(unpack_batches(batches), sites):
        yield from table.to_batches()


def _tables(rows: Iterable[KeyedRows], sites: Sequence[str]) -> Iterator[pa.Table]:
    import pyarrow as pa

    texts = array(list(sites), "string")
    for entry in rows:
        if entry.kind == DISK_REPLICAS:
            columns = [
                from_numpy(entry.columns["block"].view(np.int64)),
                texts.take(from_numpy(entry.columns["site"])),
            ]
            yield pa.table(columns, ["block", "site"])
