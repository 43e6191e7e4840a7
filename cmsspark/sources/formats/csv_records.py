r"""Records of the dumps' CSV, parsed strictly by rule 19 (``docs/counting.md``), and their values.

The slow and exact alternative to pyarrow's reader: it reports which row is wrong and
why. Both use the same grammar: a field that begins with ``"`` goes to the next ``"``, a
doubled one inside stands for itself, ``\`` makes the next character stand for itself
anywhere, a record ends at a newline outside quotes (one ``\r`` before it goes), empty
lines are none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Column, Table

#: A longer record means a quote that nothing closes.
RECORD_LIMIT: Final = 64 * 1024 * 1024
#: Columns whose values are names that begin with a slash: in another column, they tell
#: that columns moved.
_SLASHED: Final = frozenset({"logical_file_name", "dataset", "dataset_name", "block_name"})
_BOM: Final = b"\xef\xbb\xbf"

_PLAIN: Final = re.compile(rb"[^,\\\n]*")
_QUOTED: Final = re.compile(rb'[^"\\]*')
_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
_NUMBER: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_COMMA, _NEWLINE, _QUOTE, _ESCAPE = b',\n"\\'


class _Lexer:
    """Fields of one record, fed line by line until it is whole."""

    def __init__(self) -> None:
        self.fields: list[bytes] = []
        self.field = bytearray()
        self.in_quotes = False
        self.at_start = True
        self.size = 0

    def feed(self, line: bytes) -> bool:
        """Take a line with its newline; True when the record ends with it."""
        self.size += len(line)
        at, end = 0, len(line)
        while at < end:
            if self.at_start:
                self.at_start = False
                if line[at] == _QUOTE:
                    self.in_quotes = True
                    at += 1
                    continue
            match = (_QUOTED if self.in_quotes else _PLAIN).match(line, at)
            assert match is not None  # both patterns match nothing, too
            self.field += match[0]
            at = match.end()
            if at == end:
                break
            stop = line[at]
            if stop == _ESCAPE:
                self.field += line[at + 1 : at + 2]
                at += 2
            elif stop == _QUOTE:
                doubled = line[at + 1 : at + 2] == b'"'
                self.in_quotes = doubled
                self.field += b'"' if doubled else b""
                at += 2 if doubled else 1
            else:
                self._end_field(line_end=stop == _NEWLINE)
                at += 1
                if stop == _NEWLINE:
                    return True
        return False

    def _end_field(self, *, line_end: bool) -> None:
        if line_end and self.field.endswith(b"\r"):
            del self.field[-1:]
        self.fields.append(bytes(self.field))
        self.field.clear()
        self.at_start = True

    def finish(self) -> list[bytes]:
        """Return the record where the text ends without a newline."""
        self._end_field(line_end=True)
        return self.fields


def records(lines: Iterable[bytes], file: str, *, is_whole: bool = True) -> Iterator[list[bytes]]:
    """Yield the fields of each record of ``lines`` (each with its newline).

    With ``is_whole=False`` the text is the beginning of a longer one, and its last,
    unfinished record is left out. Raises DataError (65) where a quote is not closed.
    """
    lexer: _Lexer | None = None
    number = 0
    for line in lines:
        if number == 0 and lexer is None:
            line = line.removeprefix(_BOM)
        if lexer is None:
            if line in (b"\n", b"\r\n"):
                continue
            number += 1
            if b'"' not in line and b"\\" not in line and line.endswith(b"\n"):
                fields = line[:-1].split(b",")
                fields[-1] = fields[-1].removesuffix(b"\r")
                yield fields
                continue
            lexer = _Lexer()
        if lexer.feed(line):
            yield lexer.fields
            lexer = None
        elif lexer.size > RECORD_LIMIT:
            raise _unclosed(file, number, f"a record of more than {RECORD_LIMIT >> 20} MB")
    if lexer is not None and is_whole:
        if lexer.in_quotes:
            raise _unclosed(file, number, "the end of the file")
        yield lexer.finish()


def _unclosed(file: str, number: int, actual: str) -> DataError:
    return DataError(
        "a quote is not closed",
        where=f"{file}, row {number}",
        found=actual,
        next_step="fetch the dump again",
    )


def value(field: bytes, column: Column, file: str, row: int) -> str | int | float | None:
    """Return a field as its column's type: text, int, float, or None for ``null`` and
    for an empty number.
    """
    if field == b"null":
        return None
    if column.type == "string":
        return field.decode("utf-8", "replace")
    text = field.strip(b" \t")
    if not text:
        return None
    if column.type == "double":
        number = float(text) if _NUMBER.fullmatch(text) else math.inf
        if math.isfinite(number):
            return number
    elif _INTEGER.fullmatch(text):
        if len(text) < 25 and -(2**63) <= int(text) < 2**63:
            return int(text)
    elif _NUMBER.fullmatch(text) and float(text).is_integer() and abs(float(text)) <= 2**53:
        # A whole number written as a fraction; beyond 2**53 a float would not say which
        # number it was.
        return int(float(text))
    raise DataError(
        f"column {column.name} is not of type {column.type}",
        where=f"{file}, row {row}",
        found=_shown(field),
        next_step="compare the file's columns with schemas/inputs: they go by position",
    )


def _shown(field: bytes) -> str:
    """Return a value for an error message: a number as it stands; of a text, maybe of a
    person, the length only.
    """
    if re.fullmatch(rb"[0-9.eE+-]{1,40}|(?i:[+-]?(?:nan|inf(?:inity)?))", field):
        return repr(field.decode())
    return f"a text of {len(field)} bytes"


def check_width(fields: list[bytes], table: Table, file: str, row: int, width: int) -> None:
    """Raises DataError (65) for a record with fewer columns than the table has, or
    another number than the ``width`` of the file's records: a comma that nothing
    escapes moves all columns behind it.
    """
    if len(fields) > width or len(table.columns) <= len(fields) < width:
        raise DataError(
            f"rows of a file of {table.name} differ in width",
            where=f"{file}, row {row}",
            found=f"{len(fields)} columns, where others have {width}",
            next_step="look for a comma in a value without a backslash or quotes, or fetch the dump again",
        )
    if len(fields) < len(table.columns):
        raise DataError(
            f"{table.name} has {len(table.columns)} columns",
            where=f"{file}, row {row}",
            found=f"{len(fields)} columns",
            next_step="compare the file with schemas/inputs: columns go by position, new ones come last",
        )


def check_start(first: list[list[bytes]], table: Table, file: str) -> int:
    """Return the number of columns of a file whose ``first`` records are given; 0 where
    it has none.

    Raises DataError (65) for a header row, for too few columns, for records of several
    widths, for lines that end in a carriage return only, and where values show that
    columns moved.
    """
    if not first:
        return 0
    names = [column.name for column in table.columns]
    titles = [field.decode("utf-8", "replace").strip().lower() for field in first[0]]
    if titles[0] == names[0] or sum(title in names for title in titles) > 1:
        raise DataError(
            f"a file of {table.name} begins with a header row",
            where=f"{file}, row 1",
            found=f"the names of columns: {titles[0][:40]}, …",
        )
    width = Counter(map(len, first)).most_common(1)[0][0]
    if len(first) == 1 and width > len(names) and any(b"\r" in field for field in first[0]):
        raise carriage_returns(table, file)
    slashed: dict[str, list[bool]] = {}
    for row, fields in enumerate(first, 1):
        check_width(fields, table, file, row, width)
        for column, field in zip(table.columns, fields, strict=False):
            _check_value(field, column, file, row)
            if column.name in _SLASHED and field != b"null":
                slashed.setdefault(column.name, []).append(field.startswith(b"/"))
    for name, seen in slashed.items():
        if not any(seen):
            raise DataError(
                f"column {name} of {table.name} holds names that begin with a slash",
                where=file,
                found=f"none in the first {len(seen)} rows",
                next_step="compare the file's columns with schemas/inputs: they go by position",
            )
    return width


def carriage_returns(table: Table, file: str) -> DataError:
    """Return the error for a file whose lines end in a carriage return only: all of it
    would be one record.
    """
    return DataError(
        f"a line of {table.name} does not end in a newline",
        where=f"{file}, row 1",
        found="carriage returns without newlines",
        next_step="fetch the dump again, without a conversion of its line ends",
    )


def _check_value(field: bytes, column: Column, file: str, row: int) -> None:
    """Check the type of a value that may not be read: any number will do for a number,
    0 or 1 for a flag.
    """
    if column.type == "string":
        return
    loose = Column(column.name, "double")
    number = value(field, loose, file, row)
    if column.name.startswith("is_") and number not in (None, 0, 1):
        raise DataError(
            f"column {column.name} is neither 0 nor 1",
            where=f"{file}, row {row}",
            found=repr(number),
        )
