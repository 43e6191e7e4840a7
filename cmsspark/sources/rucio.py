"""The tables of a Rucio dump as numbers: which rows count, and what is ignored (rules 22 to 25).

Files go by the hashes of their names, storage elements by the numbers of
:class:`cmsspark.sources.rses.Rses`, blocks by numbers of each reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import IO, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.errors import DataError
from cmsspark.base.names import is_block
from cmsspark.sources.formats.avro import Container
from cmsspark.sources.formats.avro_table import (
    CODE,
    DID,
    ID,
    NAME,
    NUMBER,
    TablePiece,
    TableReader,
)
from cmsspark.sources.rses import TEST_RSE, UNKNOWN_RSE, Rses

#: The columns that are read of each table, and their kinds.
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "RSES": {"ID": ID, "RSE": CODE, "RSE_TYPE": CODE, "DELETED_AT": NUMBER},
    "REPLICAS": {
        "RSE_ID": ID,
        "SCOPE": CODE,
        "NAME": NAME,
        "STATE": CODE,
        "BYTES": NUMBER,
        "CREATED_AT": NUMBER,
        "ACCESSED_AT": NUMBER,
    },
    "CONTENTS": {
        "SCOPE": CODE,
        "NAME": CODE,
        "CHILD_SCOPE": CODE,
        "CHILD_NAME": NAME,
        "DID_TYPE": CODE,
        "CHILD_TYPE": CODE,
        "BYTES": NUMBER,
    },
    "DIDS": {
        "SCOPE": CODE,
        "NAME": DID,
        "DID_TYPE": CODE,
        "DELETED_AT": NUMBER,
        "ACCESSED_AT": NUMBER,
    },
}
#: What is read beside for locks (rules 64 to 67): of the tables above, and of others.
LOCK_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "REPLICAS": {**TABLES["REPLICAS"], "LOCK_CNT": NUMBER, "TOMBSTONE": NUMBER},
    "CONTENTS": TABLES["CONTENTS"],
    "DATASET_LOCKS": {
        "SCOPE": CODE,
        "NAME": CODE,
        "RULE_ID": ID,
        "RSE_ID": ID,
        "ACCOUNT": CODE,
        "STATE": CODE,
        "LENGTH": NUMBER,
        "BYTES": NUMBER,
        "CREATED_AT": NUMBER,
        "UPDATED_AT": NUMBER,
    },
    "RULES": {"ID": ID},
}
#: Columns of these that a dump may lack.
_OPTIONAL: Final = {
    "DATASET_LOCKS": frozenset(("LENGTH", "BYTES", "CREATED_AT", "UPDATED_AT")),
}
SCOPE: Final = "cms"
#: The kind under which last accesses in the future are counted: of their rows, the time
#: alone is ignored.
FUTURE_ACCESS: Final = "future_access"
#: Names that Rucio's enumerations have for the codes that dumps have: a dump that is
#: written through them has the names.
REPLICA_STATES: Final = {
    "A": "AVAILABLE",
    "U": "UNAVAILABLE",
    "C": "COPYING",
    "B": "BEING_DELETED",
    "D": "BAD",
    "T": "TEMPORARY_UNAVAILABLE",
}
DID_TYPES: Final = {
    "F": "FILE",
    "D": "DATASET",
    "C": "CONTAINER",
    "A": "ARCHIVE",
    "X": "DELETED_FILE",
    "Y": "DELETED_DATASET",
    "Z": "DELETED_CONTAINER",
}
LOCK_STATES: Final = {"O": "OK", "R": "REPLICATING", "S": "STUCK"}
#: The codes of columns; where locks are read, a row with another value is damaged (rule 64).
CODES: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "REPLICAS": {"STATE": REPLICA_STATES},
    "CONTENTS": {"DID_TYPE": DID_TYPES, "CHILD_TYPE": DID_TYPES},
    "DIDS": {"DID_TYPE": DID_TYPES},
    "DATASET_LOCKS": {"STATE": LOCK_STATES},
}
#: Times that can be true, in ms: from March 1973 to 2099. Seconds are below, and
#: microseconds above (rule 70).
_TIMES_MS: Final = (10**11, 4_102_444_800_000)
#: The kinds under which values that cannot be true are counted, by column: the value
#: alone is ignored, not its row.
OUT_OF_RANGE: Final = "_out_of_range"
#: Damaged rows that are tolerated: a share of a table, and a number. Both must be
#: exceeded to fail.
DAMAGED_SHARE: Final = 0.001
DAMAGED_ROWS: Final = 10
_EXAMPLES: Final = 5

Arrays = dict[str, npt.NDArray[Any]]
Longs = npt.NDArray[np.int64]


def find_code(codes: Mapping[str, str], text: str) -> str:
    """Return the code of Rucio that a text is, the letter or its name in the
    enumeration, case and blanks around it aside; empty if it is none. ``codes``:
    their names.

    Example:
        >>> texts = ("A", "a ", "AVAILABLE", "ReplicaState.AVAILABLE", "available!")
        >>> [find_code(REPLICA_STATES, text) for text in texts]
        ['A', 'A', 'A', 'A', '']
    """
    word = text.strip().upper().rpartition(".")[2]
    return next((code for code, name in codes.items() if word in (code, name)), "")


def _is_scope(text: str) -> bool:
    return text.strip().lower() == SCOPE


def _is_code(codes: Mapping[str, str], text: str) -> bool:
    return bool(find_code(codes, text))


def _half(part: slice, digits: str) -> int:
    """Return half of an id in hex as a signed number."""
    value = int(digits[part], 16)
    return value - 2**64 if value >= 2**63 else value


class TableCounts(msgspec.Struct):
    """The rows of a table: read, damaged (with some reasons), and ignored by kind."""

    records: int = 0
    damaged: int = 0
    examples: list[str] = msgspec.field(default_factory=list)
    ignored: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, counts: TableCounts) -> None:
        """Add the rows of another part of the table."""
        self.records += counts.records
        self.damaged += counts.damaged
        self.examples = (self.examples + counts.examples)[:_EXAMPLES]
        self.ignored.update(counts.ignored)

    def take(self, piece: TablePiece) -> None:
        """Count the rows of a piece."""
        self.records += piece.records
        self.damaged += piece.damaged_count
        self.examples = (self.examples + list(piece.damaged))[:_EXAMPLES]

    def check(self, table: str) -> None:
        """Raises DataError (65) if more rows are damaged than is tolerated."""
        if self.damaged > DAMAGED_ROWS and self.damaged > DAMAGED_SHARE * self.records:
            raise DataError(
                f"{table} has more damaged rows than {DAMAGED_SHARE:.1%} and {DAMAGED_ROWS}",
                where=self.examples[0] if self.examples else table,
                found=f"{self.damaged:,} of {self.records:,} rows with values of another type",
                next_step="compare the file with schemas/inputs/rucio; fetch it again from its source",
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as manifests have them."""
        return {
            "rows": self.records,
            "damaged": self.damaged,
            "examples": self.examples,
            "ignored": dict(
                sorted((kind, count) for kind, count in self.ignored.items() if count)
            ),
        }


class RucioReader:
    """Reads files of one table (a key of :data:`TABLES`) and counts their rows.

    ``accessed_before_ms``: a later ACCESSED_AT is taken for null and counted (rule 35);
    None believes all. ``locks_ms``: locks are read (rule 64), and replicas may go from a
    time before this on; None: they are not read.
    """

    def __init__(
        self, table: str, accessed_before_ms: int | None = None, locks_ms: int | None = None
    ) -> None:
        self.table = table
        self._accessed_before_ms = accessed_before_ms
        self._locks_ms = locks_ms
        self.counts = TableCounts()
        columns = (TABLES if locks_ms is None else LOCK_TABLES)[table]
        self._reader = TableReader(columns, _OPTIONAL.get(table, frozenset()))
        self._numbers: dict[tuple[str, str], npt.NDArray[np.int64]] = {}

    def pieces(
        self,
        stream: IO[bytes],
        file: str,
        first: int = 0,
        last: int | None = None,
        container: Container | None = None,
    ) -> Iterator[TablePiece]:
        """Yield the rows of a range of a file, whose header may have been read already.
        Raises DataError (65).
        """
        for piece in self._reader.read(stream, file, first, last, container):
            self.counts.take(piece)
            yield piece

    def texts(self, column: str) -> list[str]:
        """Return the texts (ids in hex) of a column by their numbers."""
        return list(self._reader.texts[column])

    def rse_rows(
        self, pieces: Iterable[TablePiece]
    ) -> Iterator[tuple[str | None, str | None, str | None, int | None]]:
        """Id, RSE, RSE_TYPE and DELETED_AT of each row of RSES."""
        for piece in pieces:
            columns = [
                # A CHAR is padded with blanks.
                [
                    texts[number].strip() if number >= 0 else None
                    for number in piece.numbers(name, -1)
                ]
                for name in ("ID", "RSE", "RSE_TYPE")
                for texts in [self.texts(name)]
            ]
            times = zip(piece.numbers("DELETED_AT"), piece.has("DELETED_AT"), strict=True)
            deleted = [int(value) if has else None for value, has in times]
            yield from zip(*columns, deleted, strict=True)

    def replica_rows(self, piece: TablePiece, rses: Rses) -> Arrays:
        """Return the file replicas that count (rule 24): ``hash``, ``check``, ``rse``,
        ``bytes``, ``created_ms``, ``accessed_ms`` (-1: null).
        """
        stays = self._of_scope(piece, "SCOPE")
        stays = self._keep("no_name", stays, piece.has("NAME"))
        stays = self._keep("not_available", stays, self._is(piece, "STATE", "A"))
        of_ids = self._by_text(
            "RSE_ID", "number", lambda text: rses.numbers.get(text, UNKNOWN_RSE), UNKNOWN_RSE
        )
        rse = of_ids[piece.numbers("RSE_ID", -1)]
        stays = self._keep("test_rse", stays, rse != TEST_RSE)
        stays = self._keep("unknown_rse", stays, rse != UNKNOWN_RSE)
        hashes, checks = piece.hashes("NAME")
        columns = {
            "hash": hashes,
            "check": checks,
            "rse": rse,
            "bytes": piece.numbers("BYTES", -1),
            "created_ms": self._time_ms(
                piece, "CREATED_AT", piece.numbers("CREATED_AT", -1), stays
            ),
            "accessed_ms": self._accessed_ms(piece, stays),
        }
        if self._locks_ms is not None:
            # Tombstones: 0 where it is null, 1 where it has passed, else 2. Of two
            # values of one replica the larger counts.
            tombstone = piece.numbers("TOMBSTONE", -1)
            passed = np.where(tombstone < self._locks_ms, 1, 2)
            columns |= {
                "is_locked": (piece.numbers("LOCK_CNT") > 0).astype(np.uint8),
                "tombstone": np.where(tombstone < 0, 0, passed).astype(np.uint8),
            }
        return {name: values[stays] for name, values in columns.items()}

    def lock_rows(self, piece: TablePiece, rses: Rses) -> Arrays:
        """Return the locks of blocks at storage elements that count: ``name`` and
        ``account`` (their numbers among the texts, -1: null), ``rse``, ``element`` (the
        place of its id among those of ``rses``), ``rule_high`` and ``rule_low`` (the id
        in two halves; ``has_rule``), ``state`` (in the order of their letters),
        ``updated_ms`` (-1: null).
        """
        stays = self._of_scope(piece, "SCOPE")
        stays = self._keep("no_name", stays, piece.has("NAME"))
        name = piece.numbers("NAME", -1)
        has_form = self._by_text("NAME", "block", is_block, 0)
        stays = self._keep("not_a_block", stays, has_form[name] > 0)
        ids = piece.numbers("RSE_ID", -1)
        rse = self._by_text(
            "RSE_ID", "number", lambda text: rses.numbers.get(text, UNKNOWN_RSE), UNKNOWN_RSE
        )[ids]
        stays = self._keep("test_rse", stays, rse != TEST_RSE)
        stays = self._keep("unknown_rse", stays, rse != UNKNOWN_RSE)
        elements = {text: place for place, text in enumerate(sorted(rses.numbers))}
        letters = sorted(LOCK_STATES)
        columns = {
            "name": name,
            "account": piece.numbers("ACCOUNT", -1),
            "rse": rse,
            "element": self._by_text("RSE_ID", "place", lambda text: elements.get(text, -1), -1)[
                ids
            ],
            "has_rule": piece.has("RULE_ID").astype(np.int64),
            **self._halves(piece, "RULE_ID"),
            "state": self._by_text(
                "STATE",
                "place",
                lambda text: letters.index(find_code(LOCK_STATES, text) or "O"),
                0,
            )[piece.numbers("STATE", -1)],
            "updated_ms": piece.numbers("UPDATED_AT", -1),
        }
        return {column: values[stays] for column, values in columns.items()}

    def rule_rows(self, piece: TablePiece) -> Arrays:
        """Return the ids of rules, ``rule_high`` and ``rule_low``."""
        stays = self._keep("no_id", np.ones(len(piece.words), np.bool_), piece.has("ID"))
        return {name: values[stays] for name, values in self._halves(piece, "ID").items()}

    def _halves(self, piece: TablePiece, column: str) -> Arrays:
        """Return both halves of the ids of a column, 0 for null."""
        numbers = piece.numbers(column, -1)
        halves = {"rule_high": slice(0, 16), "rule_low": slice(16, 32)}
        return {
            name: self._by_text(column, name, partial(_half, part), 0)[numbers]
            for name, part in halves.items()
        }

    def content_rows(self, piece: TablePiece) -> tuple[Arrays, Arrays]:
        """Return the files of blocks: ``hash``, ``check``, ``parent`` (its number among
        the texts of NAME), ``bytes`` (-1: null). The blocks of datasets: ``hash`` of
        the block, ``parent``.
        """
        stays = self._of_scope(piece, "SCOPE", "CHILD_SCOPE")
        stays = self._keep("no_name", stays, piece.has("NAME") & piece.has("CHILD_NAME"))
        is_dataset, is_file = self._is(piece, "DID_TYPE", "D"), self._is(piece, "CHILD_TYPE", "F")
        of_dataset = stays & self._is(piece, "DID_TYPE", "C") & self._is(piece, "CHILD_TYPE", "D")
        self.counts.ignored["other_type"] += int(
            (stays & ~of_dataset & ~(is_dataset & is_file)).sum()
        )
        of_file = stays & is_dataset & is_file
        parent = piece.numbers("NAME", -1)
        has_form = self._by_text("NAME", "block", is_block, 0)
        of_file = self._keep("not_a_block", of_file, has_form[parent] > 0)
        hashes, checks = piece.hashes("CHILD_NAME")
        files = {
            "hash": hashes,
            "check": checks,
            "parent": parent,
            "bytes": piece.numbers("BYTES", -1),
        }
        return (
            {name: values[of_file] for name, values in files.items()},
            {"hash": hashes[of_dataset], "parent": parent[of_dataset]},
        )

    def did_rows(self, piece: TablePiece) -> tuple[Arrays, Arrays]:
        """Last accesses in DIDS that are in use: of files ``hash``, ``check``,
        ``accessed_ms``; of blocks and datasets ``dataset`` (the hash of the dataset's
        name), ``accessed_ms``.
        """
        stays = self._of_scope(piece, "SCOPE")
        stays = self._keep("no_name", stays, piece.has("NAME"))
        stays = self._keep("deleted", stays, ~piece.has("DELETED_AT"))
        types = [self._is(piece, "DID_TYPE", code) for code in "FDC"]
        stays = self._keep("other_type", stays, np.logical_or.reduce(types))
        stays &= piece.has("ACCESSED_AT")
        hashes, checks = piece.hashes("NAME")
        is_block_name, of_block = piece.datasets("NAME")
        types[1] &= is_block_name
        accessed = self._accessed_ms(piece, stays & np.logical_or.reduce(types))
        of_file, blocks, datasets = (stays & kind & (accessed >= 0) for kind in types)
        return (
            {"hash": hashes[of_file], "check": checks[of_file], "accessed_ms": accessed[of_file]},
            {
                "dataset": np.concatenate((of_block[blocks], hashes[datasets])),
                "accessed_ms": np.concatenate((accessed[blocks], accessed[datasets])),
            },
        )

    def _accessed_ms(self, piece: TablePiece, stays: npt.NDArray[np.bool_]) -> Longs:
        """Return ACCESSED_AT, -1 where it is null, in the future or no time at all;
        those among the rows that stay are counted.
        """
        values = piece.numbers("ACCESSED_AT", -1)
        if self._accessed_before_ms is not None:
            is_future = values >= self._accessed_before_ms
            self.counts.ignored[FUTURE_ACCESS] += int((stays & is_future).sum())
            stays, values = stays & ~is_future, np.where(is_future, -1, values)
        return self._time_ms(piece, "ACCESSED_AT", values, stays)

    def _time_ms(
        self, piece: TablePiece, column: str, times: Longs, stays: npt.NDArray[np.bool_]
    ) -> Longs:
        """Return the times of a column (-1: null), null for what is in no plausible year;
        those among the rows that stay are counted.
        """
        is_odd = ((times < _TIMES_MS[0]) & (times != -1)) | (times >= _TIMES_MS[1])
        if is_odd.any():
            self.counts.ignored[column + OUT_OF_RANGE] += int((stays & is_odd).sum())
            times = np.where(is_odd, -1, times)
        return times

    def _of_scope(self, piece: TablePiece, *columns: str) -> npt.NDArray[np.bool_]:
        """Return the rows whose scopes are those of CMS."""
        fits = np.ones(len(piece.words), np.bool_)
        for column in columns:
            fits &= self._by_text(column, SCOPE, _is_scope, 0)[piece.numbers(column, -1)] > 0
        return self._keep("other_scope", self._has_codes(piece), fits)

    def _has_codes(self, piece: TablePiece) -> npt.NDArray[np.bool_]:
        """Return which rows have codes that Rucio has; where locks are read the others
        are damaged.
        """
        fits = np.ones(len(piece.words), np.bool_)
        columns = CODES[self.table].items() if self._locks_ms is not None else ()
        for column, codes in columns:
            known = self._by_text(column, "known", partial(_is_code, codes), 0)
            is_other = fits & (known[piece.numbers(column, -1)] == 0)
            if count := int(is_other.sum()):
                self.counts.damaged += count
                number = int(piece.numbers(column, -1)[is_other][0])
                value = "null" if number < 0 else repr(self.texts(column)[number])
                self.counts.examples.append(f"{self.table}.{column} is {value}")
                fits &= ~is_other
        self.counts.examples = self.counts.examples[:_EXAMPLES]
        return fits

    def _is(self, piece: TablePiece, column: str, expected: str) -> npt.NDArray[np.bool_]:
        """Return whether each text is the expected code or its name (rule 22)."""
        codes = CODES[self.table][column]
        is_it = self._by_text(column, expected, lambda text: find_code(codes, text) == expected, 0)
        return is_it[piece.numbers(column, -1)] > 0

    def _by_text(
        self, column: str, key: str, function: Callable[[str], int], null: int
    ) -> npt.NDArray[np.int64]:
        """``function`` of each text of a column so far, by its number, and ``null`` at
        the end, where -1 leads to.
        """
        texts = self._reader.texts[column]
        numbers = self._numbers.get((column, key), np.array([null], np.int64))
        if len(numbers) <= len(texts):
            new = np.array([*map(function, islice(texts, len(numbers) - 1, None))], np.int64)
            numbers = self._numbers[column, key] = np.concatenate((numbers[:-1], new, [null]))
        return numbers

    def _keep(
        self, kind: str, stays: npt.NDArray[np.bool_], fits: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Return those that stay and fit; the others are counted as ignored."""
        self.counts.ignored[kind] += int((stays & ~fits).sum())
        return stays & fits
