"""Replicas of blocks on disk by Rucio, made by Spark: for the index of the driver, or for the shuffle join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cmsspark.base.buffers import array, from_numpy
from cmsspark.dumps.dump_scan import key_count
from cmsspark.dumps.keyed_batches import rows_by_key
from cmsspark.dumps.keyed_rows import KeyedRows, unpacked
from cmsspark.dumps.rucio_rows import DISK_REPLICAS, READ_COUNTS
from cmsspark.dumps.rucio_scan import RucioScan, counts_of
from cmsspark.engines import shuffle_join
from cmsspark.engines.session import static_plans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def disk_replicas_of(scan: RucioScan) -> Iterator[pa.Table]:
    """Yield tables of ``block`` (the hash of its name, signed) and ``site``: the replicas on disk, each once.

    One Spark job makes them; the driver holds 16 bytes for each. Raises DataError (65) where too many rows are damaged.
    """
    with static_plans(scan.spark), scan.one_file_a_task():
        collected = scan.disk_replicas(key_count(scan.weight)).select("what", "packed").collect()
    rows = [unpacked(0, row["what"], bytes(row["packed"])) for row in collected]
    counts_of(rows)
    yield from _tables(rows, scan.disk_sites())


def kept_disk_replicas(scan: RucioScan) -> tuple[DataFrame, DataFrame]:
    """Return rows of ``shuffle_join.DISK_REPLICAS``, each once, and the persisted rows that one Spark job made them of.

    Raises DataError (65) where too many rows are damaged.
    """
    from pyspark import StorageLevel

    with static_plans(scan.spark), scan.one_file_a_task():
        rows = scan.disk_replicas(key_count(scan.weight)).persist(StorageLevel.MEMORY_AND_DISK)
        counts = rows.where(f"what = '{READ_COUNTS}'").select("packed").collect()
    counts_of(unpacked(0, READ_COUNTS, bytes(row["packed"])) for row in counts)
    return rows.mapInArrow(_Unpacked(scan.disk_sites()), shuffle_join.DISK_REPLICAS), rows


@dataclass(frozen=True)
class _Unpacked:
    """Rows of replicas on disk as columns. Runs in Python workers."""

    sites: Sequence[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in rows_by_key([batch]).values():
                for table in _tables(rows, self.sites):
                    yield from table.to_batches()


def _tables(rows: Iterable[KeyedRows], sites: Sequence[str]) -> Iterator[pa.Table]:
    import pyarrow as pa

    texts = array(list(sites), "string")
    for one in rows:
        if one.what == DISK_REPLICAS:
            columns = [from_numpy(one.columns["block"].view(np.int64)), texts.take(from_numpy(one.columns["site"]))]
            yield pa.table(columns, ["block", "site"])
