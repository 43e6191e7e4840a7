"""A Rucio dump in Spark: the same replicas of blocks that :mod:`cmsspark.kernel.block_replicas` makes (rules 22 to 26).

Python workers read ranges of the Avro files and keep the rows that count, with files as two hashes of their names. The
joins and sums are Spark's. Counts of rows come back as rows of the same results, so that each table is read once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark import days
from cmsspark.buffers import array, from_numpy
from cmsspark.errors import DataError, NotReady
from cmsspark.kernel.catalogue import hashes_in, name_hash, replica_keys
from cmsspark.names import block_dataset
from cmsspark.runners.dump_tables import TableSource
from cmsspark.runners.read_exact_files import read_exact_files
from cmsspark.sources.dumps import Dump
from cmsspark.sources.rses import Rses
from cmsspark.sources.rucio import Arrays, RucioReader, TableCounts
from cmsspark.storage import AWAY, is_local, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

#: Bytes of a file that one task reads, where workers open the files.
RANGE_BYTES: Final = 128 * 1024 * 1024
#: The largest file that Spark passes to a worker.
_MOST_BYTES: Final = 2_000_000_000
#: Kinds of rows: a file (of CONTENTS or DIDS, or a replica), a block in a dataset, an access of a dataset, counts.
FILE, ATTACHMENT, DATASET, COUNTS = 0, 1, 2, 3
_COLUMNS: Final = ("kind", "hash", "check", "number", "text", "bytes", "created_ms", "accessed_ms")
_SCHEMA: Final = (
    "kind bigint, hash bigint, check bigint, number bigint, text string, bytes bigint, created_ms bigint, "
    "accessed_ms bigint"
)


def read_rows(spark: SparkSession, dump: Dump, table: str, rses: Rses) -> DataFrame:
    """Return the rows of a table that count, with ``_SCHEMA``. A row of kind ``COUNTS`` has the counts of a task as
    JSON.

    An action on the result raises DataError (65) for damage and for another schema.
    """
    files = [file for file in dump.tables[table] if file.size]
    work = _ReadTable(table, rses)
    if all(is_local(file.path) for file in files):
        tasks = [
            (file.path, first, first + RANGE_BYTES) for file in files for first in range(0, file.size, RANGE_BYTES)
        ]
        numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return numbers.mapInArrow(_ReadRanges(tasks, work), _SCHEMA)
    for file in files:
        if file.size > _MOST_BYTES:
            raise DataError(
                "a file of a dump is too large for Spark to pass on",
                where=file.path,
                found=f"{file.size:,} bytes, the limit is {_MOST_BYTES:,}",
                next_step="mount the file system on the workers, or have sqoop write more parts (-m)",
            )
    whole = read_exact_files(spark, "binaryFile", [file.path for file in files]).select("file_path", "content")
    return whole.mapInArrow(work, _SCHEMA)


@dataclass(frozen=True)
class _ReadTable:
    """Reads whole files: rows (path, content)."""

    table: str
    rses: Rses

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(batch.column(0), batch.column(1), strict=True):
                yield from self.read(io.BytesIO(content.as_py()), path.as_py())

    def read(self, stream: IO[bytes], path: str, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        reader = RucioReader(self.table)
        for piece in reader.pieces(stream, path, first, last):
            if self.table == "REPLICAS":
                rows = reader.replica_rows(piece, self.rses)
                yield _batch({**rows, "number": rows.pop("rse")})
            elif self.table == "CONTENTS":
                files, of_datasets = reader.content_rows(piece)
                texts = reader.texts("NAME")
                yield _batch({**files, "text": [texts[number] for number in files["parent"]]})
                names = [texts[number] for number in of_datasets["parent"]]
                keys = replica_keys(of_datasets["hash"].view(np.int64), _hashes(names))
                yield _batch({"hash": keys, "kind": np.full(len(keys), ATTACHMENT)})
            else:
                of_files, others = reader.did_rows(piece)
                yield _batch(of_files)
                yield _batch({"hash": others["dataset"], "accessed_ms": others["accessed_ms"],
                              "kind": np.full(len(others["dataset"]), DATASET)})  # fmt: skip
        counts = json.dumps(reader.counts.as_dict())
        # The hash tells tasks apart where rows are grouped by it.
        key = np.array([name_hash(f"{path} {first}".encode())], np.uint64)
        yield _batch({"kind": np.full(1, COUNTS), "hash": key, "text": [counts]})


@dataclass(frozen=True)
class _ReadRanges:
    """Reads the ranges of files whose numbers the input rows hold."""

    tasks: list[tuple[str, int, int]]
    work: _ReadTable

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                path, first, last = self.tasks[number]
                try:
                    with open(local_path(path), "rb") as stream:
                        yield from self.work.read(stream, path, first, last)
                except OSError as error:
                    kind = NotReady if error.errno in AWAY else DataError
                    raise kind("a file of a dump cannot be read", where=path, found=error.strerror) from None


def _batch(rows: Arrays | dict[str, Any]) -> pa.RecordBatch:
    """Columns as a batch of ``_SCHEMA``; -1 is null in those of bytes and times."""
    import pyarrow as pa

    count = len(rows["hash"])
    columns = []
    for name in _COLUMNS:
        if name == "text":
            columns.append(array(rows["text"] if "text" in rows else [None] * count, "string"))
            continue
        values = rows.get(name, np.zeros(count, np.int64) if name == "kind" else np.full(count, -1, np.int64))
        values = np.ascontiguousarray(values).view(np.int64)
        columns.append(from_numpy(values, values >= 0 if name in ("bytes", "created_ms", "accessed_ms") else None))
    return pa.record_batch(columns, names=list(_COLUMNS))


def _hashes(names: Sequence[str]) -> Any:
    return np.fromiter((name_hash(name.encode()) for name in names), np.uint64, len(names))


@dataclass(frozen=True)
class RucioTables:
    """A Rucio dump as DataFrames.

    ``files``: (``hash``, ``check``) once each, ``block_name``, ``bytes`` (null: unknown), and rows of other kinds.
    ``sums``: by (``rse``, ``block_name``: null for files in no block), persisted, with counts. ``totals``: of each
    block ``block_files``, ``block_bytes``, persisted, with counts and attachments.
    """

    rses: Rses
    files: DataFrame
    sums: DataFrame
    totals: DataFrame
    dids: DataFrame | None
    #: Bytes of the replicas of blocks, about.
    weight: int

    def source(self) -> TableSource:
        """Return the replicas of blocks as a table of ``REPLICA_COLUMNS``, with ``created_ms`` instead of seconds."""
        import pyarrow as pa
        from pyspark.sql import functions as F

        totals = self.totals.where(F.col("kind") == FILE).select("block_name", "block_files", "block_bytes")
        sums = self.sums.where((F.col("kind") == FILE) & F.col("block_name").isNotNull())
        rows = sums.drop("kind").join(totals, "block_name", "inner")
        columns = {
            "dataset_name": F.substring_index("block_name", "#", 1),
            "block_name": F.col("block_name"),
            "node_name": F.col("rse"),
            "block_files": F.col("block_files"),
            "block_bytes": F.col("block_bytes"),
            "br_node_files": F.col("files"),
            "br_node_bytes": F.col("bytes"),
            "created_ms": F.col("created_ms"),
        }
        schema = pa.schema([(name, pa.string() if name.endswith("_name") else pa.int64()) for name in columns])
        named = rows.select(*(column.alias(name) for name, column in columns.items()))
        return TableSource(named, iter, schema, self.weight)

    def disk_replicas(self) -> DataFrame:
        """Return (``block_name``, ``site``) of the replicas of blocks on disk, each once."""
        from pyspark.sql import functions as F

        places = [(rse.name, rse.site) for rse in self.rses.rses if rse.kind == "disk"]
        on_disk = self.sums.sparkSession.createDataFrame(places, "rse string, site string")
        sums = self.sums.where((F.col("kind") == FILE) & F.col("block_name").isNotNull())
        return sums.join(F.broadcast(on_disk), "rse", "inner").select("block_name", "site").distinct()

    def dataset_sums(self) -> DataFrame:
        """Return the sums by (``node_name``, ``dataset_name``), as in ``kernel.block_replicas``."""
        from pyspark.sql import functions as F

        rows = self.sums.where(F.col("kind") == FILE)
        return rows.groupBy(
            F.substring_index("block_name", "#", 1).alias("dataset_name"), F.col("rse").alias("node_name")
        ).agg(
            *(F.sum(name).alias(name) for name in ("files", "bytes", "new_files", "new_bytes", "accessed_files")),
            *(F.coalesce(F.max(name), F.lit(-1)).alias(name) for name in ("created_ms", "accessed_ms")),
        )

    def counts(self) -> dict[str, TableCounts]:
        """Return the counts of each table. Raises DataError (65) where too many rows are damaged."""
        from pyspark.sql import functions as F

        found = {}
        for table, rows in (("CONTENTS", self.totals), ("REPLICAS", self.sums), ("DIDS", self.dids)):
            if rows is not None:
                texts = rows.where(F.col("kind") == COUNTS).select("detail").collect()
                found[table] = _together(row["detail"] for row in texts)
                found[table].check(table)
        return found

    def unattached(self) -> int:
        """Return how many blocks are not in their own dataset."""
        from pyspark.sql import functions as F

        attached = self.totals.where(F.col("kind") == ATTACHMENT).select("hash")
        blocks = self.totals.where(F.col("kind") == FILE).select("block_name")
        return blocks.mapInArrow(_attachments, "hash bigint").join(attached, "hash", "left_anti").count()

    def close(self) -> None:
        """Unpersist the rows."""
        for rows in (self.sums, self.totals, self.dids):
            if rows is not None:
                rows.unpersist()


def _attachments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The keys of blocks in their own datasets."""
    import pyarrow as pa

    for batch in batches:
        names = batch.column(0).to_pylist()
        hashes = hashes_in(pa.chunked_array([array(names, "string")]))
        keys = replica_keys(hashes.view(np.int64), _hashes([block_dataset(name) for name in names]))
        yield pa.record_batch([from_numpy(keys.view(np.int64))], names=["hash"])


def _together(texts: Iterable[str]) -> TableCounts:
    whole = TableCounts()
    for text in texts:
        found = json.loads(text)
        part = TableCounts(found["rows"], found["damaged"], found["examples"])
        part.ignored.update(found["ignored"])
        whole.add(part)
    return whole


def rucio_tables(spark: SparkSession, dump: Dump, rses: Rses, day: date) -> RucioTables:
    """Return a dump as DataFrames. An action on them raises DataError (65) for damage and for another schema."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    contents = read_rows(spark, dump, "CONTENTS", rses)
    # The smallest block, and of its rows the largest size.
    size = F.coalesce(-F.col("bytes"), F.lit(1))
    smallest = F.min(F.struct(F.col("text").alias("text"), size.alias("size"))).alias("first")
    named = contents.groupBy("kind", "hash", "check").agg(smallest)
    files = named.select(
        "kind", "hash", "check", F.col("first.text").alias("block_name"),
        F.when(F.col("first.size") <= 0, -F.col("first.size")).alias("bytes"),
    )  # fmt: skip
    unique = _once(read_rows(spark, dump, "REPLICAS", rses))
    numbers = spark.createDataFrame(
        [(number, rse.name) for number, rse in enumerate(rses.rses)], "number long, rse string"
    )
    placed = unique.join(F.broadcast(numbers), "number", "left")
    largest = placed.where(F.col("kind") == FILE).groupBy("hash", "check").agg(F.max("bytes").alias("largest"))
    sized = files.join(largest, ["hash", "check"], "left").withColumn("bytes", F.coalesce("bytes", "largest"))
    totals = (
        sized.groupBy("kind", F.when(F.col("kind") == FILE, F.col("block_name")).alias("block_name"),
                      F.when(F.col("kind") == COUNTS, F.col("block_name")).alias("detail"),
                      F.when(F.col("kind") == ATTACHMENT, F.col("hash")).alias("hash"))
        .agg(F.count(F.lit(1)).alias("block_files"), F.coalesce(F.sum("bytes"), F.lit(0)).alias("block_bytes"))
    )  # fmt: skip
    blocks = files.where(F.col("kind") == FILE).select("hash", "check", "block_name")
    sums = _sums(placed.join(blocks, ["hash", "check"], "left"), day)
    dids = _accesses(read_rows(spark, dump, "DIDS", rses), blocks) if "DIDS" in dump.tables else None
    kept = [rows.persist(StorageLevel.MEMORY_AND_DISK) if rows is not None else None for rows in (sums, totals, dids)]
    # A block has a hundred files or so, in Avro packed to a fraction of the rows' size.
    weight = sum(file.size for file in dump.tables["REPLICAS"]) // 10
    return RucioTables(rses, sized, kept[0] or sums, kept[1] or totals, kept[2], weight)


def _once(rows: DataFrame) -> DataFrame:
    """Return each (file, RSE) once, with its largest values; counts as they are."""
    from pyspark.sql import functions as F

    names = ("text", "bytes", "created_ms", "accessed_ms")
    return rows.groupBy("kind", "hash", "check", "number").agg(*(F.max(name).alias(name) for name in names))


def _sums(rows: DataFrame, day: date) -> DataFrame:
    """Return the sums by (RSE, block)."""
    from pyspark.sql import functions as F

    first, last = days.timestamp_ms_bounds(day)
    is_new = (F.col("created_ms") >= first) & (F.col("created_ms") < last)
    return rows.groupBy("kind", "rse", "block_name", F.col("text").alias("detail")).agg(
        F.count(F.lit(1)).alias("files"),
        _sum(F.col("bytes")).alias("bytes"),
        F.count_if(is_new).alias("new_files"),
        _sum(F.when(is_new, F.col("bytes"))).alias("new_bytes"),
        F.count("accessed_ms").alias("accessed_files"),
        F.max("created_ms").alias("created_ms"),
        F.max("accessed_ms").alias("accessed_ms"),
    )


def _sum(column: Column) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.sum(column), F.lit(0))


def _accesses(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    """Return the last accesses in DIDS: by ``dataset_name`` for files, by the dataset's ``hash`` for others; counts."""
    from pyspark.sql import functions as F

    is_file = F.col("kind") == FILE
    of_files = rows.where(is_file).join(blocks, ["hash", "check"], "inner")
    names = ["kind", "dataset_name", "hash", "detail", "accessed_ms"]
    named = of_files.select(
        "kind", F.substring_index("block_name", "#", 1).alias("dataset_name"), F.lit(None).cast("long").alias("hash"),
        F.lit(None).cast("string").alias("detail"), "accessed_ms",
    )  # fmt: skip
    others = rows.where(~is_file).withColumn("dataset_name", F.lit(None).cast("string"))
    together = named.unionByName(others.withColumnRenamed("text", "detail").select(*names))
    return together.groupBy(*names[:-1]).agg(F.max("accessed_ms").alias("accessed_ms"))
