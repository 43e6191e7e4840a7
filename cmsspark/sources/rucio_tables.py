"""The tables of Rucio about locks, rules and usage, and the tasks of CRAB, row by row (rule 64).

Files and their replicas come as numbers (:mod:`cmsspark.sources.rucio`); these tables
come as Python's values, and the names of files as hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.sources.formats import avro
from cmsspark.sources.formats.avro import Container
from cmsspark.sources.formats.avro_table import (
    CODE,
    ID,
    NAME,
    NUMBER,
    SIGNED,
    TablePiece,
    TableReader,
)
from cmsspark.sources.rucio import TableCounts

#: The letters of Rucio's enumerations, by the names that they have there.
LOCK_STATES: Final = {"REPLICATING": "R", "OK": "O", "STUCK": "S"}
RULE_STATES: Final = {
    **LOCK_STATES,
    "SUSPENDED": "U",
    "WAITING_APPROVAL": "W",
    "INJECT": "I",
}
REPLICA_STATES: Final = {
    "AVAILABLE": "A",
    "UNAVAILABLE": "U",
    "COPYING": "C",
    "BEING_DELETED": "B",
    "BAD": "D",
    "TEMPORARY_UNAVAILABLE": "T",
}
_RULE_COLUMNS: Final = {
    "ID": ID,
    "SCOPE": CODE,
    "NAME": CODE,
    "DID_TYPE": CODE,
    "STATE": CODE,
    "ERROR": CODE,
    "RSE_EXPRESSION": CODE,
    "COPIES": NUMBER,
    "EXPIRES_AT": NUMBER,
    "LOCKS_OK_CNT": NUMBER,
    "LOCKS_REPLICATING_CNT": NUMBER,
    "LOCKS_STUCK_CNT": NUMBER,
    "ACTIVITY": CODE,
    "STUCK_AT": NUMBER,
    "COMMENTS": CODE,
    "CREATED_AT": NUMBER,
    "UPDATED_AT": NUMBER,
    "ACCOUNT": CODE,
}
_HISTORY_COLUMNS: Final = {
    "ID": ID,
    "SCOPE": CODE,
    "NAME": CODE,
    "STATE": CODE,
    "EXPIRES_AT": NUMBER,
    "ACTIVITY": CODE,
    "COMMENTS": CODE,
    "CREATED_AT": NUMBER,
    "UPDATED_AT": NUMBER,
    "ACCOUNT": CODE,
}


class RowTable(msgspec.Struct, frozen=True):
    """How a table is read: the kind of each column, in the order in which they decide
    between two rows of one key. ``key``: empty if rows have none. ``optional``:
    columns that a dump may lack; they are null there. ``states``: the letters of the
    column STATE, where it must have one of them. ``table``: its name in the dump.
    """

    table: str
    columns: Mapping[str, str]
    key: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset(("UPDATED_AT",))
    states: Mapping[str, str] = msgspec.field(default_factory=dict)


#: The rules of the dump of the day before.
RULES_BEFORE: Final = "RULES_BEFORE"
_RULES: Final = RowTable(
    "RULES",
    _RULE_COLUMNS,
    ("ID",),
    optional=frozenset(("DID_TYPE", "UPDATED_AT")),
    states=RULE_STATES,
)
#: By the name of a reading of a table.
ROW_TABLES: Final[Mapping[str, RowTable]] = {
    "RULES": _RULES,
    RULES_BEFORE: _RULES,
    "RULES_HISTORY": RowTable("RULES_HISTORY", _HISTORY_COLUMNS, states=RULE_STATES),
    "ACCOUNTS": RowTable(
        "ACCOUNTS",
        {"ACCOUNT": CODE, "ACCOUNT_TYPE": CODE, "UPDATED_AT": NUMBER},
        ("ACCOUNT",),
    ),
    "ACCOUNT_LIMITS": RowTable(
        "ACCOUNT_LIMITS",
        {"ACCOUNT": CODE, "RSE_ID": ID, "BYTES": SIGNED, "UPDATED_AT": NUMBER},
        ("ACCOUNT", "RSE_ID"),
    ),
    "RSE_USAGE": RowTable(
        "RSE_USAGE",
        {
            "RSE_ID": ID,
            "SOURCE": CODE,
            "USED": NUMBER,
            "FREE": NUMBER,
            "FILES": NUMBER,
            "UPDATED_AT": NUMBER,
        },
        ("RSE_ID", "SOURCE"),
    ),
    "RSE_ATTR_MAP": RowTable(
        "RSE_ATTR_MAP",
        {"RSE_ID": ID, "KEY": CODE, "VALUE": CODE, "UPDATED_AT": NUMBER},
        ("RSE_ID", "KEY"),
    ),
    "TASKS": RowTable(
        "TASKS",
        {
            "TM_TASKNAME": CODE,
            "TM_START_TIME": NUMBER,
            "TM_TASK_STATUS": CODE,
            "TM_SPLIT_ALGO": CODE,
            "TM_JOB_TYPE": CODE,
            "TM_USERNAME": CODE,
            "TM_USER_ROLE": CODE,
            "TM_IGNORE_LOCALITY": CODE,
            "TM_SCRIPTEXE": CODE,
            "TM_USER_CONFIG": CODE,
            "TM_NUM_JOBS": NUMBER,
            "TM_DDM_REQID": CODE,
        },
        ("TM_TASKNAME",),
        optional=frozenset(("TM_USER_CONFIG", "TM_DDM_REQID")),
    ),
    "LOCKS": RowTable(
        "LOCKS",
        {
            "SCOPE": CODE,
            "NAME": NAME,
            "RULE_ID": ID,
            "RSE_ID": ID,
            "ACCOUNT": CODE,
            "STATE": CODE,
            "BYTES": NUMBER,
            "UPDATED_AT": NUMBER,
        },
        ("SCOPE", "NAME", "RULE_ID", "RSE_ID"),
        states=LOCK_STATES,
    ),
    "REPLICA_LOCKS": RowTable(
        "REPLICAS",
        {
            "SCOPE": CODE,
            "NAME": NAME,
            "RSE_ID": ID,
            "BYTES": NUMBER,
            "STATE": CODE,
            "LOCK_CNT": NUMBER,
            "TOMBSTONE": NUMBER,
            "UPDATED_AT": NUMBER,
        },
        ("SCOPE", "NAME", "RSE_ID"),
        states=REPLICA_STATES,
    ),
}


def letter(states: Mapping[str, str], text: str) -> str | None:
    """Return the letter of a code, or of its name in the enumeration, case and outer
    blanks aside; None if it is neither.

    Example:
        >>> [letter(LOCK_STATES, text) for text in ("o", " STUCK ", "LockState.OK", "X")]
        ['O', 'S', 'O', None]
    """
    word = text.strip().upper().rpartition(".")[2]
    return word if word in states.values() else states.get(word)


def scope_class(scope: str | None) -> str:
    """Return the class of a scope: ``cms``, ``user``, ``group`` or ``other``."""
    word = (scope or "").strip().lower()
    if word == "cms":
        return word
    return next((kind for kind in ("user", "group") if word.startswith(f"{kind}.")), "other")


class RowReader:
    """Reads files of one table, and counts their rows. ``texts``: as of :class:`TableReader`."""

    def __init__(self, name: str) -> None:
        self.described = ROW_TABLES[name]
        self.counts = TableCounts()
        self._reader = TableReader(self.described.columns)
        self._results: dict[tuple[str, Any], list[Any]] = {}

    def pieces(
        self,
        stream: IO[bytes],
        file: str,
        first: int = 0,
        last: int | None = None,
        container: Container | None = None,
    ) -> Iterator[TablePiece]:
        """Yield the rows of a range of a file without those of unknown states, which are
        damaged. Raises DataError (65).
        """
        container = container or avro.open_container(stream, file)
        if container is None:
            return
        names_in_file = {
            str(entry["name"]).upper() for entry in container.schema.get("fields", ())
        }
        kinds = {
            name: kind
            for name, kind in self.described.columns.items()
            if name not in self.described.optional or name in names_in_file
        }
        if kinds.keys() != self._reader.kinds.keys():
            self._reader, self._results = TableReader(kinds), {}
        for piece in self._reader.read(stream, file, first, last, container):
            self.counts.take(piece)
            yield self._with_known_states(piece, file) if self.described.states else piece

    def _with_known_states(self, piece: TablePiece, file: str) -> TablePiece:
        states = np.array(
            [value is not None for value in self.values(piece, "STATE", self.letter)], np.bool_
        )
        damaged = int((~states).sum())
        if not damaged:
            return piece
        self.counts.damaged += damaged
        self.counts.examples = [*self.counts.examples, f"{file}: STATE is no known state"][:5]
        return TablePiece(piece.columns, piece.words[states], piece.records)

    def letter(self, text: str) -> str | None:
        """Return the letter of a state; None if it is unknown."""
        return letter(self.described.states, text)

    def texts(self, column: str) -> list[str]:
        """Return the texts (ids in hex) of a column by their numbers."""
        return list(self._reader.texts[column])

    def has(self, column: str) -> bool:
        """Return whether the file has an optional column."""
        return column in self._reader.kinds

    def number(self, piece: TablePiece, column: str) -> npt.NDArray[np.int64]:
        """Return the numbers of a column, -1 for null."""
        if not self.has(column):
            return np.full(len(piece.words), -1, np.int64)
        return piece.numbers(column, -1)

    def by_text(
        self, piece: TablePiece, column: str, function: Callable[[str | None], int]
    ) -> npt.NDArray[np.int64]:
        """Return ``function`` of each text of a column; of None if it is null."""
        texts = self._texts(column, function)
        values: npt.NDArray[np.int64] = np.array([*texts, function(None)], np.int64)
        return values[self.number(piece, column)]

    def values(
        self, piece: TablePiece, column: str, function: Callable[[str], Any] | None = None
    ) -> list[Any]:
        """Return the values of a column as Python has them, None for null: ids as hex.
        ``function``: of each text.
        """
        if not self.has(column):
            return [None] * len(piece.words)
        has, numbers = piece.has(column).tolist(), piece.numbers(column).tolist()
        if column not in self._reader.texts:
            return [
                number if is_there else None for number, is_there in zip(numbers, has, strict=True)
            ]
        texts = self._texts(column, function)
        return [
            texts[number] if is_there else None
            for number, is_there in zip(numbers, has, strict=True)
        ]

    def columns(self, piece: TablePiece) -> dict[str, list[Any]]:
        """Return all columns but names of files, states as letters."""
        return {
            name: self.values(
                piece, name, self.letter if name == "STATE" and self.described.states else None
            )
            for name in self.described.columns
        }

    def _texts(self, column: str, function: Callable[[Any], Any] | None) -> list[Any]:
        """Return the texts of a column by number, or ``function`` of each."""
        texts = self._reader.texts.get(column, {})
        results = self._results.setdefault((column, function), [])
        new = islice(texts, len(results), None)
        results += new if function is None else map(function, new)
        return results


def choose_rows(name: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return each row of a table's key once: the one with the larger UPDATED_AT, then
    the larger of the other columns in their order; null is lowest. Rows without a part
    of the key stay out.
    """
    described = ROW_TABLES[name]
    names = list(described.columns)
    if not described.key:
        return list(rows)
    key_columns = [names.index(part) for part in described.key]
    updated = names.index("UPDATED_AT") if "UPDATED_AT" in names else None

    def rank(row: tuple[Any, ...]) -> tuple[Any, ...]:
        first = () if updated is None else (_rank(row[updated]),)
        return (*first, *map(_rank, row))

    chosen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        key = tuple(row[column] for column in key_columns)
        if None in key:
            continue
        if key not in chosen or rank(row) > rank(chosen[key]):
            chosen[key] = row
    return list(chosen.values())


def _rank(value: Any) -> tuple[bool, Any]:
    if isinstance(value, str):
        return True, value.encode()
    return value is not None, value or 0
