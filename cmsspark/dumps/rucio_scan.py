"""A Rucio dump: which tables are read, and the rows of a range of a file by key (rules 22 to 26)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import IO, Any, Final, NamedTuple

import numpy as np

from cmsspark.base import dates
from cmsspark.base.buffers import array
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.text.readable import encodable
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.row_use import RowUse
from cmsspark.dumps.keyed_rows import ROWS, Columns, KeyedRows, by_key, join_pieces, keys_of_hashes
from cmsspark.dumps.rucio_rows import (
    ATTACHMENTS,
    CONTENTS,
    FILE_ACCESSES,
    FILE_REPLICAS,
    READ_COUNTS,
    dataset_access_rows,
    hash_names,
)
from cmsspark.filesystems.storage import AWAY, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.avro_ranges import Container
from cmsspark.sources.listing import InputFile
from cmsspark.sources.rses import Rses, load_sites
from cmsspark.sources.rucio import FUTURE_ACCESS, OUT_OF_RANGE, RucioReader, TableCounts

#: Bytes of CSV that take as much memory as a byte of Avro: 90 bytes are a row.
WEIGHT: Final = 4
#: The tables that are read, as far as a dump has them.
TABLES: Final = ("CONTENTS", "REPLICAS", "DIDS")


class OpenRange(NamedTuple):
    """A range of a file of a table, whose header may have been read."""

    table: str
    stream: IO[bytes]
    path: str
    first: int
    last: int
    container: Container | None = None


@dataclass(frozen=True)
class RucioScan:
    """A dump to read. ``day_ms``: the day in which replicas are new; ``accessed_before_ms``: as of
    :class:`cmsspark.sources.rucio.RucioReader`.
    """

    dump: Dump
    rses: Rses
    day_ms: tuple[int, int] = (0, 0)
    accessed_before_ms: int | None = None

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
        return RangeMapper(self.rses, keys, self.accessed_before_ms)


@dataclass(frozen=True)
class RangeMapper:
    """Makes keyed rows of ranges of the tables of Rucio, and of each range its counts.

    Raises DataError (65) for damage and for another schema.
    """

    rses: Rses
    keys: int
    accessed_before_ms: int | None

    def __call__(self, ranges: Iterable[OpenRange]) -> Iterator[KeyedRows]:
        read = {"REPLICAS": self._replicas, "CONTENTS": self._contents, "DIDS": self._accesses}
        for entry in ranges:
            reader = RucioReader(entry.table, self.accessed_before_ms)
            pieces = reader.pieces(
                entry.stream, entry.path, entry.first, entry.last, entry.container
            )
            yield from read[entry.table](reader, pieces)
            yield _pack_counts(entry.table, reader.counts)

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
        for attached in join_pieces(second, ROWS):
            datasets = hash_names(array(reader.texts("NAME"), "string"))[attached["parent"]]
            columns = {"block": attached["hash"], "dataset": datasets}
            yield from by_key(ATTACHMENTS, keys_of_hashes(datasets, self.keys), columns)

    def _accesses(self, reader: RucioReader, pieces: Iterable[Any]) -> Iterator[KeyedRows]:
        second: list[Columns] = []
        files = (_first(reader.did_rows(piece), second) for piece in pieces)
        for rows in join_pieces(files, ROWS):
            yield from by_key(FILE_ACCESSES, keys_of_hashes(rows["hash"], self.keys), rows)
        for rows in join_pieces(second, ROWS):
            yield from dataset_access_rows(rows["dataset"], rows["accessed_ms"], self.keys)


def _first(both: tuple[Columns, Columns], second: list[Columns]) -> Columns:
    """Return the first of two results; the second waits for the end of the range."""
    second.append(both[1])
    return both[0]


def _pack_counts(table: str, counts: TableCounts) -> KeyedRows:
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
    """Return the counts of each table. Raises DataError (65) where too many rows are damaged."""
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


def read_rses(dump: Dump, rses_file: str | None, opened: Any) -> tuple[Rses, TableCounts]:
    """Return the storage elements of a dump. Raises DataError (65), SettingsError (78)
    for wrong exceptions.
    """
    reader = RucioReader("RSES")
    rows: list[tuple[str | None, str | None, str | None, int | None]] = []
    for file in dump.tables["RSES"]:
        with opened(file.path) as stream:
            rows += reader.rse_rows(reader.pieces(stream, file.path))
    reader.counts.check("RSES")
    return Rses.from_rows(rows, load_sites(rses_file)), reader.counts


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
