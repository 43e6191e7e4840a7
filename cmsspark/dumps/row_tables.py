"""Tables of a dump row by row: each row of a key once, and what a job makes of them (rule 64).

A row goes to the task that has all rows of its key. There ``reduce`` makes tables of
the rows of the key, which come to the collecting process: sums, or the few rows that a
job shows. LOCKS and REPLICAS have a row for each file and are summed as numbers
(:mod:`cmsspark.dumps.lock_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import xxhash

from cmsspark.base.buffers import array
from cmsspark.dumps.keyed_rows import ROWS, KeyedRows, by_key, join_pieces, keys_of_hashes
from cmsspark.dumps.rucio_rows import READ_COUNTS
from cmsspark.dumps.rucio_scan import WEIGHT, OpenRange, counts_by_table, pack_counts
from cmsspark.engines.merge_task import decode_rows, encode_rows
from cmsspark.sources.formats.avro_table import NUMBER, SIGNED, TablePiece
from cmsspark.sources.layout import InputFile
from cmsspark.sources.rses import TEST_RSE, UNKNOWN_RSE, Rses
from cmsspark.sources.rucio import TableCounts
from cmsspark.sources.rucio_tables import ROW_TABLES, RowReader, choose_rows, scope_class

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.dumps.dump_plan import Transport

Row = tuple[Any, ...]
#: Rows of a key by the name of their reading.
Rows = Mapping[str, list[Row]]
#: Makes tables of the rows of a key.
Reduce = Callable[[Rows], Mapping[str, "pa.Table"]]

#: Readings whose rows are of files.
LOCKS, REPLICA_LOCKS = "LOCKS", "REPLICA_LOCKS"
SCOPES: Final = ("cms", "user", "group", "other")
STATES: Final = {LOCKS: "ORS", REPLICA_LOCKS: "ABCDTU"}
#: Why a row stays out: it lacks a part of its key, or its key was there before.
NO_KEY, REPEATED = "no_key", "repeated"
_ODD: Final = 0x9E3779B97F4A7C15


class RowScan(msgspec.Struct, frozen=True):
    """The files to read, each with the name of a reading
    (:data:`cmsspark.sources.rucio_tables.ROW_TABLES`).
    """

    listed: Sequence[tuple[str, InputFile]]

    @property
    def files(self) -> list[tuple[str, InputFile]]:
        """The files that have content, the largest first."""
        return sorted(
            (pair for pair in self.listed if pair[1].size), key=lambda pair: -pair[1].size
        )

    @property
    def weight(self) -> int:
        """Bytes of the files, as those of CSV."""
        return WEIGHT * sum(file.size for _, file in self.files)


class RowFilter(Protocol):
    """Says which rows of a reading are kept; a row has its columns by name."""

    def __call__(self, row: Mapping[str, Any]) -> bool: ...


class RowMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of ranges. ``filters``: of readings without a key, which of
    their rows are kept. ``rses``: of the rows of files.
    """

    keys: int
    rses: Rses = msgspec.field(default_factory=Rses)
    filters: Mapping[str, RowFilter] = msgspec.field(default_factory=dict)

    def __call__(self, ranges: Iterable[OpenRange]) -> Iterator[KeyedRows]:
        for entry in ranges:
            reader = RowReader(entry.table)
            pieces = reader.pieces(
                entry.stream, entry.path, entry.first, entry.last, entry.container
            )
            read = self._files if entry.table in STATES else self._rows
            yield from read(entry.table, reader, pieces)
            yield pack_counts(entry.table, reader.counts)

    def _rows(
        self, name: str, reader: RowReader, pieces: Iterable[TablePiece]
    ) -> Iterator[KeyedRows]:
        described = ROW_TABLES[name]
        names, is_chosen = list(described.columns), self.filters.get(name)
        key_column = names.index(described.key[0]) if described.key else 0
        for piece in pieces:
            by_number: dict[int, list[Row]] = {}
            for row in zip(*reader.columns(piece).values(), strict=True):
                if is_chosen is not None and not is_chosen(dict(zip(names, row, strict=True))):
                    reader.counts.ignored["not_wanted"] += 1
                    continue
                digest = xxhash.xxh64_intdigest((row[key_column] or "").encode())
                by_number.setdefault(int((digest >> 52) // (4096 // self.keys)), []).append(row)
            for key, rows in by_number.items():
                yield _packed(key, name, _table(name, rows))

    def _files(
        self, name: str, reader: RowReader, pieces: Iterable[TablePiece]
    ) -> Iterator[KeyedRows]:
        functions = {
            "RSE_ID": lambda text: self.rses.numbers.get(text or "", UNKNOWN_RSE),
            "STATE": lambda text: STATES[name].find(reader.letter(text or "") or "-"),
        }
        read = partial(self._file_rows, name, reader, functions)
        for rows in join_pieces(map(read, pieces), ROWS // 4):
            names = {}
            if name == LOCKS:
                accounts = [*reader.texts("ACCOUNT"), None]
                rows["account"] %= len(accounts)
                names["account"] = array(accounts, "string")
            yield from by_key(name, keys_of_hashes(rows["hash"], self.keys), rows, names)

    def _file_rows(
        self,
        name: str,
        reader: RowReader,
        functions: Mapping[str, Callable[[str | None], int]],
        piece: TablePiece,
    ) -> dict[str, Any]:
        rse = reader.by_text(piece, "RSE_ID", functions["RSE_ID"])
        key = [part for part in ROW_TABLES[name].key if part != "RSE_ID"]
        stays = np.logical_and.reduce([piece.has(part) for part in key])
        ignored = reader.counts.ignored
        ignored[NO_KEY] += int((~stays).sum())
        ignored["test_rse"] += int((stays & (rse == TEST_RSE)).sum())
        ignored["unknown_rse"] += int((stays & (rse == UNKNOWN_RSE)).sum())
        stays &= rse >= 0
        scope = reader.by_text(piece, "SCOPE", _scope_hash).view(np.uint64)
        hashes, checks = piece.hashes("NAME")
        columns = {
            "hash": hashes ^ scope,
            "check": checks ^ scope,
            "scope": reader.by_text(piece, "SCOPE", _scope_number).astype(np.int8),
            "rse": rse.astype(np.int32),
            "state": reader.by_text(piece, "STATE", functions["STATE"]).astype(np.int8),
            "bytes": reader.number(piece, "BYTES"),
            "updated_ms": reader.number(piece, "UPDATED_AT"),
        }
        if name == LOCKS:
            columns["rule_high"] = reader.by_text(piece, "RULE_ID", _high)
            columns["rule_low"] = reader.by_text(piece, "RULE_ID", _low)
            # Behind the last text stands null.
            columns["account"] = reader.number(piece, "ACCOUNT")
        else:
            columns["lock_count"] = reader.number(piece, "LOCK_CNT")
            columns["tombstone_ms"] = reader.number(piece, "TOMBSTONE")
        return {column: values[stays] for column, values in columns.items()}


def _scope_hash(scope: str | None) -> int:
    digest = xxhash.xxh64_intdigest((scope or "").encode()) * _ODD % 2**64
    return digest - 2**64 if digest >= 2**63 else digest


def _scope_number(scope: str | None) -> int:
    return SCOPES.index(scope_class(scope))


def _high(rule: str | None) -> int:
    return _signed(int((rule or "0" * 32)[:16], 16))


def _low(rule: str | None) -> int:
    return _signed(int((rule or "0" * 32)[16:], 16))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    kinds = ROW_TABLES[name].columns
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return pa.table(
        {
            column: pa.array(values, pa.int64() if kind in (NUMBER, SIGNED) else pa.string())
            for (column, kind), values in zip(kinds.items(), columns, strict=True)
        }
    )


def _packed(key: int, kind: str, table: pa.Table) -> KeyedRows:
    return KeyedRows(key, kind, {"rows": np.frombuffer(encode_rows(table), np.uint8)})


def unpacked(rows: KeyedRows) -> pa.Table:
    """Return the table that rows of a reading, or of a ``reduce``, hold."""
    return decode_rows(rows.columns["rows"].tobytes())


class RowMerge(msgspec.Struct, frozen=True):
    """Chooses the rows of a key, and has ``reduce`` make tables of them."""

    reduce: Reduce

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        read: dict[str, list[Row]] = {}
        for entry in rows:
            if entry.kind == READ_COUNTS:
                yield entry
                continue
            columns = unpacked(entry).to_pydict().values()
            read.setdefault(entry.kind, []).extend(zip(*columns, strict=True))
        chosen = {}
        for name, of_table in read.items():
            chosen[name] = choose_rows(name, of_table)
            counts = TableCounts()
            described = ROW_TABLES[name]
            key_columns = [list(described.columns).index(part) for part in described.key]
            counts.ignored[NO_KEY] = sum(
                any(row[key_column] is None for key_column in key_columns) for row in of_table
            )
            counts.ignored[REPEATED] = len(of_table) - counts.ignored[NO_KEY] - len(chosen[name])
            yield pack_counts(name, counts)
        for kind, table in self.reduce(chosen).items():
            yield _packed(0, kind, table)


def read_rows(
    transport: Transport,
    scan: RowScan,
    reduce: Reduce,
    keys: int,
    filters: Mapping[str, RowFilter] | None = None,
) -> tuple[dict[str, list[pa.Table]], dict[str, TableCounts]]:
    """Return the tables that ``reduce`` made of the rows of each key, and the counts of
    each reading. Raises DataError (65) if too many rows are damaged.
    """
    mapper = RowMapper(keys, filters=filters or {})
    rows = transport.union(
        [transport.map(source, mapper, keys) for source in transport.ranges(scan)]
    )
    collected = transport.collect(transport.merge(rows, keys, RowMerge(reduce)))
    tables: dict[str, list[pa.Table]] = {}
    for entry in collected:
        if entry.kind != READ_COUNTS:
            tables.setdefault(entry.kind, []).append(unpacked(entry))
    return tables, counts_by_table(collected)


def pass_rows(rows: Rows) -> dict[str, pa.Table]:
    """Return the rows as they are: a ``reduce`` of small tables."""
    return {name: _table(name, of_table) for name, of_table in rows.items()}
