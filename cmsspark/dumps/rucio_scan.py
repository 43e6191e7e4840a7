"""A Rucio dump: which tables are read, and the rows of a range of a file by key (rules 22 to 26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import msgspec
import numpy as np

from cmsspark.base import dates
from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import array
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.text.readable import encodable
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.row_use import RowUse
from cmsspark.dumps.keyed_rows import (
    ROWS,
    Columns,
    KeyedRows,
    by_key,
    join_pieces,
    keys_of_hashes,
    keys_of_ids,
)
from cmsspark.dumps.rucio_rows import (
    ATTACHMENTS,
    CONTENTS,
    DATASET_LOCKS,
    FILE_ACCESSES,
    FILE_REPLICAS,
    READ_COUNTS,
    RULES,
    BlockNames,
    dataset_access_rows,
    hash_names,
)
from cmsspark.engines.scan import SCHEME, read_explicit_files
from cmsspark.engines.tasks import first_values
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.hdfs import RemoteFiles, choose_client, open_whole
from cmsspark.filesystems.storage import AWAY, is_local, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.avro import Container, open_container
from cmsspark.sources.layout import InputFile
from cmsspark.sources.rses import Rses, load_sites
from cmsspark.sources.rucio import FUTURE_ACCESS, OUT_OF_RANGE, RucioReader, TableCounts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: Bytes of CSV that take as much memory as a byte of Avro: 90 bytes are a row.
WEIGHT: Final = 4
#: The tables that are read, as far as a dump has them.
TABLES: Final = ("CONTENTS", "REPLICAS", "DIDS", "DATASET_LOCKS", "RULES")
#: A range of a table is so many times as small where nearly each row has a name of its own.
_NAMED: Final = {"DATASET_LOCKS": 4}


class OpenRange(NamedTuple):
    """A range of a file of a table, whose header may have been read."""

    table: str
    stream: IO[bytes]
    path: str
    first: int
    last: int
    container: Container | None = None


class Scan(Protocol):
    """Files to read: the name of a table with each, the largest first, and their bytes
    as those of CSV.
    """

    @property
    def files(self) -> list[tuple[str, InputFile]]: ...
    @property
    def weight(self) -> int: ...


class RucioScan(msgspec.Struct, frozen=True):
    """A dump to read. ``day_ms``: the day in which replicas are new. ``accessed_before_ms`` and
    ``locks_ms``: as of :class:`cmsspark.sources.rucio.RucioReader`.
    """

    dump: Dump
    rses: Rses
    day_ms: tuple[int, int] = (0, 0)
    accessed_before_ms: int | None = None
    locks_ms: int | None = None

    @property
    def files(self) -> list[tuple[str, InputFile]]:
        """The files that have content, the largest first, with their tables."""
        files = [
            (table, file)
            for table in TABLES
            for file in self.dump.tables.get(table, ())
            if file.size
        ]
        return sorted(files, key=lambda pair: -pair[1].size)

    @property
    def weight(self) -> int:
        """Bytes of the files, as those of CSV."""
        return WEIGHT * sum(file.size for _, file in self.files)

    def mapper(self, keys: int) -> RangeMapper:
        """Return what makes keyed rows of ranges."""
        return RangeMapper(self.rses, keys, self.accessed_before_ms, self.locks_ms)


def range_starts(table: str, size: int, range_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where the ranges of a file of a table begin and end."""
    step = max(1, range_bytes // _NAMED.get(table, 1))
    for first in range(0, size, step):
        yield first, first + step


class RangeMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of ranges of the tables of Rucio, and of each range its counts.

    Raises DataError (65) for damage and for another schema.
    """

    rses: Rses
    keys: int
    accessed_before_ms: int | None
    locks_ms: int | None = None

    def __call__(self, ranges: Iterable[OpenRange]) -> Iterator[KeyedRows]:
        read = {
            "REPLICAS": self._replicas,
            "CONTENTS": self._contents,
            "DIDS": self._accesses,
            "DATASET_LOCKS": self._locks,
            "RULES": self._rules,
        }
        for entry in ranges:
            reader = RucioReader(entry.table, self.accessed_before_ms, self.locks_ms)
            pieces = reader.pieces(
                entry.stream, entry.path, entry.first, entry.last, entry.container
            )
            yield from read[entry.table](reader, pieces)
            yield pack_counts(entry.table, reader.counts)

    def _replicas(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        for rows in join_pieces((reader.replica_rows(piece, self.rses) for piece in pieces), ROWS):
            yield from by_key(FILE_REPLICAS, keys_of_hashes(rows["hash"], self.keys), rows)

    def _contents(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        second: list[Columns] = []
        files = (_first(reader.content_rows(piece), second) for piece in pieces)
        for rows in join_pieces(files, ROWS):
            rows["block"] = rows.pop("parent")
            names = {"block": array(reader.texts("NAME"), "string")}
            yield from by_key(CONTENTS, keys_of_hashes(rows["hash"], self.keys), rows, names)
        if self.locks_ms is not None:
            return
        for attached in join_pieces(second, ROWS):
            datasets = hash_names(array(reader.texts("NAME"), "string"))[attached["parent"]]
            columns = {"block": attached["hash"], "dataset": datasets}
            yield from by_key(ATTACHMENTS, keys_of_hashes(datasets, self.keys), columns)

    def _locks(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        """Yield locks by the key of their rule, where a lock meets its repetitions."""
        for rows in join_pieces((reader.lock_rows(piece, self.rses) for piece in pieces), ROWS):
            blocks = BlockNames(array(reader.texts("NAME"), "string"))
            name = rows.pop("name")
            rows |= {
                "block": blocks.hashes[name],
                "check": blocks.checks[name],
                "dataset": blocks.dataset[name],
            }
            # The last of the accounts is null.
            accounts = array([*reader.texts("ACCOUNT"), None], "string")
            rows["account"] %= len(accounts)
            names = {"dataset": blocks.datasets, "account": accounts}
            yield from by_key(DATASET_LOCKS, keys_of_rules(rows, self.keys), rows, names)

    def _rules(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        for rows in join_pieces((reader.rule_rows(piece) for piece in pieces), ROWS):
            yield from by_key(RULES, keys_of_rules(rows, self.keys), rows)

    def _accesses(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        second: list[Columns] = []
        files = (_first(reader.did_rows(piece), second) for piece in pieces)
        for rows in join_pieces(files, ROWS):
            yield from by_key(FILE_ACCESSES, keys_of_hashes(rows["hash"], self.keys), rows)
        for rows in join_pieces(second, ROWS):
            yield from dataset_access_rows(rows["dataset"], rows["accessed_ms"], self.keys)


def keys_of_rules(rows: Columns, keys: int) -> Longs:
    """Return the key of each rule, by both halves of its id."""
    ids: Longs = np.bitwise_xor(rows["rule_high"], rows["rule_low"])
    return keys_of_ids(ids, keys)


def _first(both: tuple[Columns, Columns], second: list[Columns]) -> Columns:
    """Return the first of two results; the second waits for the end of the range."""
    second.append(both[1])
    return both[0]


def pack_counts(table: str, counts: TableCounts) -> KeyedRows:
    """Return the counts of rows of a table, for :func:`counts_by_table`."""
    numbers = {"rows": np.array([counts.records]), "damaged": np.array([counts.damaged])}
    kinds = {kind: count for kind, count in counts.ignored.items() if count}
    columns = {
        **numbers,
        "example": np.arange(len(counts.examples)),
        "ignored": np.array([*kinds.values()], np.int64),
        "kind": np.arange(len(kinds)),
        "table": np.zeros(1, np.int64),
    }
    # An example names its file, whose name may be any bytes.
    examples = [encodable(example) for example in counts.examples]
    names = {"example": examples, "kind": list(kinds), "table": [table]}
    return KeyedRows(
        0, READ_COUNTS, columns, {name: array(texts, "string") for name, texts in names.items()}
    )


def counts_by_table(rows: Iterable[KeyedRows]) -> dict[str, TableCounts]:
    """Return the counts of each table. Raises DataError (65) if too many rows are damaged."""
    by_table: dict[str, TableCounts] = {}
    for entry in rows:
        if entry.kind == READ_COUNTS:
            texts = {name: values.to_pylist() for name, values in entry.names.items()}
            part = TableCounts(
                int(entry.columns["rows"][0]), int(entry.columns["damaged"][0]), texts["example"]
            )
            part.ignored.update(
                dict(zip(texts["kind"], entry.columns["ignored"].tolist(), strict=True))
            )
            by_table.setdefault(texts["table"][0], TableCounts()).add(part)
    for table, counts in sorted(by_table.items()):
        counts.check(table)
    return by_table


def count_uses(table: str, counts: TableCounts) -> dict[str, RowUse]:
    """Return what was used of a table, and of the values of its columns that are read."""
    of_values = {
        kind: kind.removesuffix(OUT_OF_RANGE)
        for kind in counts.ignored
        if kind.endswith(OUT_OF_RANGE)
    }
    set_aside = Counter({"damaged": counts.damaged}) + Counter(
        {
            kind: count
            for kind, count in counts.ignored.items()
            if kind not in of_values and kind != FUTURE_ACCESS
        }
    )
    uses = {table: RowUse(counts.records, counts.records - set_aside.total(), set_aside)}
    for kind, column in of_values.items():
        count = counts.ignored[kind]
        uses[f"{table}.{column}"] = RowUse(
            uses[table].used,
            max(0, uses[table].used - count),
            Counter({"out_of_range": count}),
            is_of_values=True,
        )
    return uses


def accessed_before_ms(frames: Sequence[str], day: date) -> int | None:
    """Return the end of the day after ``day``, in UTC ms, for a job that reads last
    accesses (rule 35); else None.
    """
    return dates.start_ms(day) + 2 * dates.DAY_MS if "last_access" in frames else None


def future_accesses(entry: Mapping[str, Any], day: date) -> list[str]:
    """Return warnings about last accesses in the future, by a manifest's entry on Rucio."""
    counts = {
        table: rows["ignored"].get(FUTURE_ACCESS, 0) for table, rows in entry["tables"].items()
    }
    return [
        f"rucio: {pluralize(count, 'last access', 'last accesses')} of {table} after {day + timedelta(days=1)}"
        " are in the future and not believed"
        for table, count in counts.items()
        if count
    ]


def read_rses(
    dump: Dump, rses_file: str | None, opened: Any, *, with_tests: bool = False
) -> tuple[Rses, TableCounts]:
    """Return the storage elements of a dump. ``with_tests``: also those for tests.
    Raises DataError (65), SettingsError (78) for wrong exceptions.
    """
    reader = RucioReader("RSES")
    rows: list[tuple[str | None, str | None, str | None, int | None]] = []
    for file in dump.tables["RSES"]:
        with opened(file.path) as stream:
            rows += reader.rse_rows(reader.pieces(stream, file.path))
    reader.counts.check("RSES")
    rses = Rses.from_rows(rows, load_sites(rses_file), with_tests=with_tests)
    return rses, reader.counts


@contextmanager
def open_local(path: str) -> Iterator[IO[bytes]]:
    """Open a file of a dump on a disk. Raises DataError (65), NotReady (75) where the
    disk is away.
    """
    try:
        with open(local_path(path), "rb") as stream:
            yield stream
    except OSError as error:
        kind = NotReady if error.errno in AWAY else DataError
        raise kind("a dump's file cannot be read", where=path, found=error.strerror) from None


# The files of a Rucio dump in Spark: tasks read ranges of them. Each table is read
# once.

#: Bytes of a file that are read with one numbering of names. A worker that opens the
#: files reads them in one task.
RANGE_BYTES: Final = 128 * 1024 * 1024


class RangeSource(msgspec.Struct, frozen=True):
    """Files of Rucio: the ``rows`` that Spark hands to its workers, and ``items``,
    which makes ranges of them.
    """

    rows: DataFrame
    items: Callable[[Iterable[pa.RecordBatch]], Iterator[OpenRange]]
    weight: int


def range_sources(
    spark: SparkSession, scan: Scan, feed: str, remote: RemoteFiles | None, range_bytes: int
) -> tuple[list[RangeSource], int]:
    """Return the sources of a dump, and the bytes of the largest file that Spark must not divide.

    ``feed`` and ``remote``: as of :class:`cmsspark.dumps.spark_transport.SparkTransport`.
    """
    files = scan.files
    is_hdfs = all(file.path.startswith(SCHEME) for _, file in files)
    client = (remote or choose_client(spark)) if is_hdfs and files else None
    is_local_dump = all(is_local(file.path) for _, file in files)
    if not files or (
        feed != "spark" and (feed == "direct" or is_local_dump or client is not None)
    ):
        starts = [
            (table, file, first, last)
            for table, file in files
            for first, last in range_starts(table, file.size, range_bytes)
        ]
        ranges = [(table, file.path, first, last) for table, file, first, last in starts]
        if client is None:
            numbers = spark.range(0, len(ranges), 1, max(1, len(ranges))).toDF("number")
        else:
            middles = [
                (file.path, (first + min(last, file.size)) // 2) for _, file, first, last in starts
            ]
            # A task prefers the hosts that store the middle of what it reads.
            hadoop = HadoopFiles(spark)
            hosts = [hadoop.hosts_at(path, position) for path, position in middles]
            numbers = place_tasks(spark, hosts)
        return [RangeSource(numbers, partial(_open_ranges, ranges, client), scan.weight)], 0
    sources = []
    for table in sorted({table for table, _ in files}):
        listed = [file for of_table, file in files if of_table == table]
        rows = _pieces(spark, [file.path for file in listed])
        weight = WEIGHT * sum(file.size for file in listed)
        sources.append(RangeSource(rows, partial(_open_pieces, table, range_bytes), weight))
    return sources, max(file.size for _, file in files)


def _pieces(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the bytes of files between newlines, in order, with the file's path and size."""
    from pyspark.sql import functions as F

    pieces = read_explicit_files(spark, "text", paths, lineSep="\n")
    return pieces.select("file_path", F.col("file_size"), F.col("value").cast("binary"))


def place_tasks(spark: SparkSession, hosts: Sequence[tuple[str, ...]]) -> DataFrame:
    """Return the rows 0, 1, … (column ``number``), each a task with the hosts that it prefers."""
    from pyspark.sql import DataFrame

    if not hosts:
        return spark.range(0).toDF("number")
    jvm: Any = spark.sparkContext._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    sequences = {names: to_seq(list(names)) for names in set(hosts)}
    tasks = [jvm.scala.Tuple2(number, sequences[names]) for number, names in enumerate(hosts)]
    context: Any = spark.sparkContext._jsc
    # Only this method of Spark takes preferred hosts; a class tag comes from any RDD.
    numbers = context.sc().makeRDD(to_seq(tasks), context.emptyRDD().classTag())
    session: Any = spark._jsparkSession
    rows = session.createDataset(numbers, jvm.org.apache.spark.sql.Encoders.INT())
    return DataFrame(rows.toDF(), spark).toDF("number")


def _open_ranges(
    ranges: Sequence[tuple[str, str, int, int]],
    remote: RemoteFiles | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[OpenRange]:
    """Open the ranges of files whose numbers the input rows hold; those of HDFS with ``remote``."""
    for number in first_values(batches):
        table, path, first, last = ranges[number]
        with open_local(path) if remote is None else _open_remote(remote, path) as stream:
            yield OpenRange(table, stream, path, first, last)


@contextmanager
def _open_remote(files: RemoteFiles, path: str) -> Iterator[IO[bytes]]:
    with open_whole(files, path) as remote:
        yield cast("IO[bytes]", remote)


def _open_pieces(
    table: str, range_bytes: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[OpenRange]:
    """Open whole files of a table, of rows (path, size, bytes between newlines), range
    after range.
    """
    pieces = (piece for batch in batches for piece in _runs(batch))
    for (path, size), of_file in groupby(pieces, key=itemgetter(0)):
        forward = ForwardStream(size, (content for _, content in of_file))
        stream = cast("IO[bytes]", forward)
        container = open_container(stream, path)
        for first, last in range_starts(table, size, range_bytes):
            forward.release(first)
            yield OpenRange(table, stream, path, first, last, container)


class ForwardStream:
    """Bytes that can be read from the last released position on. ``size``: of the file;
    later bytes are not of it.
    """

    def __init__(self, size: int, pieces: Iterable[bytes]) -> None:
        self._size = size
        self._pieces: Iterator[bytes] = iter(pieces)
        self._buffer = bytearray()
        #: Where the buffer begins, and the position of the next read.
        self._begin = 0
        self._at = 0

    def seek(self, at: int, whence: int = 0) -> int:
        """Set the position: from the start, or with ``whence`` 1 from the current one."""
        self._at = at + (self._at if whence == 1 else 0)
        return self._at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; fewer at the end, and if the pieces end before it.

        Raises ValueError for released ones.
        """
        if self._at < self._begin:
            raise ValueError(f"byte {self._at} was released; the stream begins at {self._begin}")
        last = self._size if count < 0 else min(self._size, self._at + count)
        while self._begin + len(self._buffer) < last:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._buffer += piece
        content = bytes(self._buffer[self._at - self._begin : max(0, last - self._begin)])
        self._at += len(content)
        return content

    def release(self, before: int) -> None:
        """Forget the bytes before a position; those that have not come yet are dropped
        when they come.
        """
        while self._begin + len(self._buffer) <= before:
            self._begin += len(self._buffer)
            self._buffer = bytearray()
            piece = next(self._pieces, None)
            if piece is None:
                self._begin = max(self._begin, before)
                return
            self._buffer += piece
        del self._buffer[: max(0, before - self._begin)]
        self._begin = max(self._begin, before)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Yield ((path, size), bytes) for each run of rows of one file, with a newline after each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    runs = pc.run_end_encode(batch.column(0))
    start = 0
    for path, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        rows = batch.column(2).slice(start, end - start).cast(pa.large_binary())
        together = pa.LargeListArray.from_arrays(pa.array([0, len(rows)], pa.int64()), rows)
        (content,) = pc.binary_join(together, pa.scalar(b"\n", pa.large_binary())).to_pylist()
        yield (path, batch.column(1)[start].as_py()), content + b"\n"
        start = end
