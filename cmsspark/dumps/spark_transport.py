"""Keyed rows in Spark: tasks make packed rows, an exchange brings those of one key
together, and a task merges them.

The JVM neither decodes nor compares rows. The classes run in Python workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base import buffers
from cmsspark.base.schemas import Table
from cmsspark.dumps.dump_tables import TableSource, table_source
from cmsspark.dumps.keyed_rows import KeyedRows, Mapper, Merge, unpack
from cmsspark.dumps.rucio_scan import RANGE_BYTES, RangeSource, range_sources
from cmsspark.engines.merge_task import decode_rows, encode_rows, partition_numbers
from cmsspark.engines.scan import set_sizes
from cmsspark.engines.session import static_plans
from cmsspark.engines.tasks import first_values
from cmsspark.filesystems.hdfs import RemoteFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.dumps.rucio_scan import Scan
    from cmsspark.sources.dumps import Dump

#: ``part`` decides on the partition: a number for each key.
SCHEMA: Final = "part int, key int, kind string, packed binary"
#: Rows that are encoded together where a table goes to Spark.
_SENT_ROWS: Final = 1_000_000


@dataclass
class SparkTransport:
    """Carries rows by exchanges of Spark. ``feed``: ``direct`` (workers open the
    files), ``spark`` (Spark passes lines or bytes), or ``auto``. ``remote``: what opens
    files on HDFS in the workers; None: the client that is installed, if there is one.
    ``range_bytes``: of Rucio's files that are read with one numbering of names.
    """

    spark: SparkSession
    feed: str = "auto"
    remote: RemoteFiles | None = None
    #: Some two million files of DBS, 100 MB of numbers.
    key_bytes: int = 512 * 1024 * 1024
    range_bytes: int = RANGE_BYTES
    #: Bytes of the sources so far, and of the largest file that Spark must not divide.
    _weight: int = field(default=0, init=False)
    _undivided: int = field(default=0, init=False)

    def table(self, dump: Dump, name: str, columns: Sequence[str]) -> TableSource:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        return table_source(self.spark, dump, name, columns, self.feed, self.remote)

    def ranges(self, scan: Scan) -> list[RangeSource]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        sources, self._undivided = range_sources(
            self.spark, scan, self.feed, self.remote, self.range_bytes
        )
        return sources

    def map(self, source: TableSource | RangeSource, mapper: Mapper[Any], keys: int) -> DataFrame:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        self._weight += source.weight
        return source.rows.mapInArrow(
            partial(_map_items, source.items, mapper, partition_numbers(keys)), SCHEMA
        )

    def union(self, rows: Sequence[DataFrame]) -> DataFrame:
        """See :class:`cmsspark.dumps.dump_plan.Transport`."""
        return reduce(lambda first, right: first.unionAll(right), rows)

    def merge(self, rows: DataFrame, keys: int, merge: Merge) -> DataFrame:
        """See :class:`cmsspark.dumps.dump_plan.Transport`: one exchange."""
        return rows.repartition(keys, "part").mapInArrow(
            partial(_merge_keys, merge, partition_numbers(keys)), SCHEMA
        )

    def collect(self, rows: DataFrame) -> list[KeyedRows]:
        """See :class:`cmsspark.dumps.dump_plan.Transport`: one job."""
        set_sizes(self.spark, self._weight)
        self._weight = 0
        with self.running():
            packed = rows.select("key", "kind", "packed").collect()
        return [unpack(row["key"], row["kind"], bytes(row["packed"])) for row in packed]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run actions on rows: without adaptive execution, and with Rucio's files a
        task each where Spark reads them, as an Avro block may lie on both sides of any
        byte.
        """
        names = (
            ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
            if self._undivided
            else ()
        )
        before = {name: self.spark.conf.get(name) for name in names}
        for name in names:
            self.spark.conf.set(name, str(self._undivided))
        try:
            with static_plans(self.spark):
                yield
        finally:
            for name, value in before.items():
                self.spark.conf.set(name, str(value))


def _map_items(
    items: Callable[[Iterable[pa.RecordBatch]], Iterable[Any]],
    mapper: Mapper[Any],
    to_partition: Sequence[int],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Map what a source makes of its input, and pack the rows."""
    return _pack_rows(mapper(items(batches)), to_partition)


def _merge_keys(
    merge: Merge, to_partition: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Merge the rows of each key, and pack those that come of it."""
    by_key: dict[int, list[KeyedRows]] = defaultdict(list)
    for rows in unpack_batches(batches):
        by_key[rows.key].append(rows)
    while by_key:
        key, rows_of_key = by_key.popitem()
        yield from _pack_rows(merge(key, rows_of_key), to_partition)


def unpack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[KeyedRows]:
    """Yield the rows of batches of :data:`SCHEMA`."""
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("key", "kind", "packed")]
        yield from map(unpack, *columns)


def _pack_rows(rows: Iterable[KeyedRows], to_partition: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield each as a batch of :data:`SCHEMA`."""
    import pyarrow as pa

    for entry in rows:
        numbers = [np.array([number], np.int32) for number in (to_partition[entry.key], entry.key)]
        packed = buffers.binary([b"".join(entry.buffers())])
        columns = [
            *map(buffers.from_numpy, numbers),
            buffers.array([entry.kind], "string"),
            packed,
        ]
        yield pa.RecordBatch.from_arrays(columns, ["part", "key", "kind", "packed"])


def send_table(spark: SparkSession, rows: pa.Table, schema: Table) -> DataFrame:
    """Return rows of the driver, with the columns of ``schema``, as a DataFrame."""
    starts = range(0, max(1, rows.num_rows), _SENT_ROWS)
    packed = [encode_rows(rows.slice(start, _SENT_ROWS)) for start in starts]
    numbers = spark.range(0, len(packed), 1, len(packed))
    return numbers.mapInArrow(partial(_decode, packed), schema.spark())


def _decode(
    packed: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are encoded under the numbers of the input."""
    for number in first_values(batches):
        yield from decode_rows(packed[number]).to_batches()
