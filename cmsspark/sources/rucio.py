"""The tables of a Rucio dump as numbers: which rows count, and what is ignored (rules 22 to 25).

Files go by the hashes of their names, storage elements by the numbers of
:class:`cmsspark.sources.rses.Rses`, blocks by numbers of each reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import IO, Any, Final

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
SCOPE: Final = "cms"
#: The kind under which last accesses in the future are counted: of their rows, the time
#: alone is ignored.
FUTURE_ACCESS: Final = "future_access"
#: Names that Rucio's enumerations have for the codes that dumps have: a dump that is
#: written through them has the names.
_CODE_NAMES: Final = {"A": "AVAILABLE", "F": "FILE", "D": "DATASET", "C": "CONTAINER"}
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


def is_code(code: str, text: str) -> bool:
    """Return whether a text is a code of Rucio: the letter or its name in the
    enumeration, case and blanks around it aside.

    Example:
        >>> [is_code("A", text) for text in ("A", "a ", "AVAILABLE", "ReplicaState.AVAILABLE", "U")]
        [True, True, True, True, False]
    """
    word = text.strip().upper().rpartition(".")[2]
    return word in (code, _CODE_NAMES[code])


def _is_scope(text: str) -> bool:
    return text.strip().lower() == SCOPE


@dataclass
class TableCounts:
    """The rows of a table: read, damaged (with some reasons), and ignored by kind."""

    records: int = 0
    damaged: int = 0
    examples: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)

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
        """Raises DataError (65) where more rows are damaged than is tolerated."""
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
    None believes all.
    """

    def __init__(self, table: str, accessed_before_ms: int | None = None) -> None:
        self.table = table
        self._accessed_before_ms = accessed_before_ms
        self.counts = TableCounts()
        self._reader = TableReader(TABLES[table])
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
        return {name: values[stays] for name, values in columns.items()}

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
        stays = np.ones(len(piece.words), np.bool_)
        for column in columns:
            stays &= self._by_text(column, SCOPE, _is_scope, 0)[piece.numbers(column, -1)] > 0
        self.counts.ignored["other_scope"] += int((~stays).sum())
        return stays

    def _is(self, piece: TablePiece, column: str, expected: str) -> npt.NDArray[np.bool_]:
        """Return whether each text is the expected code or its name (rule 22)."""
        return (
            self._by_text(column, expected, partial(is_code, expected), 0)[
                piece.numbers(column, -1)
            ]
            > 0
        )

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
