r"""The dumps' CSV as sqoop writes it, read into Arrow tables (``docs/counting.md``, rule 19).

Columns go by position, without a header. Any text may be enclosed in ``"``, ``\`` makes
the next character stand for itself in and out of quotes, a newline inside quotes
belongs to the value, ``null`` is null, columns beyond the known ones come last and are
left alone. Plain text is read by compiled code; with quotes, and where nothing was
compiled, by pyarrow's reader as far as it surely reads rightly. A file that both refuse
or might mistake goes through ``records``, which reads it after all or says the row and
the reason.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Final

from cmsspark.base.buffers import is_utf8, packed_bits
from cmsspark.base.compiled import compiled
from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Column, Table
from cmsspark.sources.formats.lines import BOM, HEAD_BYTES, check_text, unpacked

# Records of the dumps' CSV, parsed strictly by rule 19 (``docs/counting.md``), and
# their values.

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
    unfinished record is left out. Raises DataError (65) if a quote is not closed.
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
            f"a row of {table.name} has fewer than {len(table.columns)} columns",
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
                f"no name in column {name} of {table.name} begins with a slash",
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


_plain_csv: Final[Any] = compiled("sources.formats.plain_csv")
#: The next steps where a packed file is damaged, and where a file is something else.
_FETCH: Final = "fetch the dump again"
_OR_CSV: Final = "or write the table anew as sqoop does, in CSV"
#: Bytes parsed at once.
BLOCK: Final = 8 * 1024 * 1024
#: Bytes that compiled code goes through at once: what is made of them fits a core's cache.
_PLAIN_BLOCK: Final = 1024 * 1024
#: Bytes, and records, at a file's start that are checked in all their columns.
SAMPLE: Final = 64 * 1024
SAMPLE_RECORDS: Final = 100
#: What pyarrow might take otherwise than rule 19.
_MARKS: Final = (b"\r", b'"', b"\\")
#: What compiled code calls the types of columns.
_KINDS: Final = {"int64": 0, "string": 1, "double": 2}
#: Rows in a piece of the slow way.
_SLOW_ROWS: Final = 50_000


def read_table(
    source: str | IO[bytes], table: Table, columns: Sequence[str], name: str | None = None
) -> Iterator[Any]:
    """``pyarrow.Table`` pieces of one part file (a local path or a seekable binary
    stream), with ``columns`` in order.

    string columns are text (bytes that are no UTF-8 become U+FFFD), long is int64,
    double is float64; any may be null. A file without records gives nothing. Raises
    DataError (65) that names file, row and value for a header row, too few columns,
    rows of several widths, lines that end in a carriage return only, a number that is
    none, an unclosed quote, columns in another order, and damaged packings.
    """
    file = name or (
        source if isinstance(source, str) else str(getattr(source, "name", "a stream"))
    )
    if isinstance(source, str):
        with open(source, "rb") as stream:
            yield from _pieces(stream, table, columns, file)
    else:
        yield from _pieces(source, table, columns, file)


def arrow_schema(table: Table, columns: Sequence[str]) -> Any:
    """Return the ``pyarrow.Schema`` of what :func:`read_table` yields."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "long": pa.int64(), "double": pa.float64()}
    types = {column.name: kinds[column.type] for column in table.columns}
    return pa.schema([(column, types[column]) for column in columns])


def _pieces(stream: IO[bytes], table: Table, columns: Sequence[str], file: str) -> Iterator[Any]:
    import pyarrow as pa

    watched = _Watched(unpacked(stream, file, _FETCH), file)
    width = check_start(watched.start(table), table, file)
    if width == 0:
        return
    done = 0
    for way in (_plain, _fast):
        try:
            for piece in _past(done, way(watched, table, columns, width)):
                done += piece.num_rows
                yield piece
            return
        except (pa.ArrowInvalid, _Doubtful):
            # From the start again; the rows that were handed on already are passed over.
            stream.seek(0)
            watched = _Watched(unpacked(stream, file, _FETCH), file)
    yield from _slow(records(_lines(watched), file), table, columns, file, done, width)


def _past(rows: int, pieces: Iterator[Any]) -> Iterator[Any]:
    """Yield the pieces without the first ``rows`` rows."""
    for piece in pieces:
        skipped = min(rows, piece.num_rows)
        rows -= skipped
        if skipped < piece.num_rows:
            yield piece.slice(skipped)


def _plain(watched: _Watched, table: Table, columns: Sequence[str], width: int) -> Iterator[Any]:
    """By compiled code, where the text is so plain that nothing can be mistaken. Raises
    _Doubtful where it is not.
    """
    schema = arrow_schema(table, columns)
    kinds = [(table.names.index(field.name), _KINDS[str(field.type)]) for field in schema]
    if _plain_csv is None or len(kinds) > _plain_csv.MOST_COLUMNS:
        raise _Doubtful
    remaining, is_first = b"", True
    while piece := watched.text(_PLAIN_BLOCK):
        text = remaining + piece
        if is_first:
            text, is_first = text.removeprefix(BOM), False
        cut = text.rfind(b"\n") + 1
        text, remaining = text[:cut], text[cut:]
        if len(remaining) > RECORD_LIMIT:
            raise _Doubtful
        if text:
            yield _table(_plain_csv.split_columns(text, width, kinds), text, schema)
    if remaining:
        yield _table(_plain_csv.split_columns(remaining + b"\n", width, kinds), remaining, schema)


def _table(result: Any, text: bytes, schema: Any) -> Any:
    """Return what compiled code found in ``text``.

    Raises _Doubtful where it found none, and for text that is not UTF-8.
    """
    import pyarrow as pa

    if result is None or not is_utf8(text):
        raise _Doubtful
    rows, columns = result
    arrays = []
    for field, (validity, nulls, *content) in zip(schema, columns, strict=True):
        bits = packed_bits(validity) if nulls else None
        buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in (bits, *content)]
        arrays.append(pa.Array.from_buffers(field.type, rows, buffers, nulls))
    return pa.Table.from_arrays(arrays, schema=schema)


def _fast(watched: _Watched, table: Table, columns: Sequence[str], width: int) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    schema = arrow_schema(table, columns)
    names = [*table.names, *(f"extra {number}" for number in range(width - len(table.columns)))]
    reader = csv.open_csv(
        pa.PythonFile(watched, mode="r"),
        read_options=csv.ReadOptions(column_names=names, block_size=BLOCK),
        parse_options=csv.ParseOptions(
            escape_char="\\", double_quote=True, newlines_in_values=True
        ),
        convert_options=csv.ConvertOptions(
            column_types=schema,
            include_columns=list(columns),
            null_values=["null"],
            strings_can_be_null=True,
        ),
    )
    doubles = [field.name for field in schema if pa.types.is_floating(field.type)]
    with reader:
        for batch in reader:
            if not all(
                pc.all(pc.is_finite(batch[name])).as_py() in (True, None) for name in doubles
            ):
                raise _Doubtful
            if batch.num_rows:
                yield pa.Table.from_batches([batch], schema)
    watched.check_quotes()


def _slow(
    rows: Iterable[list[bytes]],
    table: Table,
    columns: Sequence[str],
    file: str,
    done: int,
    width: int,
) -> Iterator[Any]:
    import pyarrow as pa

    position_of = {column.name: position for position, column in enumerate(table.columns)}
    needed: list[tuple[int, Column]] = [
        (position_of[name], table.columns[position_of[name]]) for name in columns
    ]
    schema = arrow_schema(table, columns)
    numbered = islice(enumerate(rows, 1), done, None)
    while chunk := list(islice(numbered, _SLOW_ROWS)):
        for row, fields in chunk:
            check_width(fields, table, file, row, width)
        arrays = [
            pa.array(
                [value(fields[position], column, file, row) for row, fields in chunk],
                schema.field(column.name).type,
            )
            for position, column in needed
        ]
        yield pa.Table.from_arrays(arrays, schema=schema)


class _Doubtful(Exception):
    """The text holds what pyarrow might read otherwise than rule 19."""


class _Watched(io.RawIOBase):
    """The plain text of a part file; damage is named, and what pyarrow would take
    otherwise is noticed on the way.
    """

    def __init__(self, stream: Any, file: str) -> None:
        self._stream = stream
        self._file = file
        self._start = b""
        self._last = b""
        self._quotes = 0
        self._escapes = False

    def readable(self) -> bool:
        """True, as pyarrow asks."""
        return True

    def start(self, table: Table) -> list[list[bytes]]:
        """Return the first whole records; :meth:`read` gives their text again.

        Raises DataError (65) for a file without newlines.
        """
        size = SAMPLE
        while True:
            piece = self.read_raw(size - len(self._start))
            self._start += piece
            if size == SAMPLE:
                check_text(self._start[:HEAD_BYTES], self._file, "a table of CSV", _OR_CSV)
            is_whole = not piece
            if is_whole or len(self._start) >= size:
                lines = _split(self._start)
                first_records = list(
                    islice(records(lines, self._file, is_whole=is_whole), SAMPLE_RECORDS)
                )
                if first_records or is_whole:
                    return first_records
                if b"\n" not in self._start and self._start.count(b"\r") > 1:
                    raise carriage_returns(table, self._file)
                # The first record is longer than that.
                size *= 4

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as pyarrow asks for them.

        Raises _Doubtful where it would split rows at a lone ``\\r``.
        """
        piece = self.text(BLOCK if size < 0 else size)
        # Searches for one byte cost next to nothing; most dumps have none of these.
        if self._last in _MARKS or any(mark in piece for mark in _MARKS):
            start = self._last + piece
            if b"\r" in start and start.count(b"\r") - start.endswith(b"\r") != start.count(
                b"\r\n"
            ):
                raise _Doubtful
            if b'"' in piece:
                self._quotes += piece.count(b'"') - start.count(b'\\"')
            self._escapes = self._escapes or b"\\\\" in start
        self._last = piece[-1:]
        return piece

    def text(self, size: int) -> bytes:
        """Up to ``size`` bytes, none at the end; first the start."""
        if self._start:
            piece, self._start = self._start, b""
            return piece
        return self.read_raw(size)

    def check_quotes(self) -> None:
        """After the end: raise _Doubtful where a quote that nothing closes may have
        swallowed rows.
        """
        if self._quotes % 2 or (self._quotes and self._escapes):
            raise _Doubtful

    def read_raw(self, size: int) -> bytes:
        """Up to ``size`` bytes, none at the end."""
        return bytes(self._stream.read(size))


def _lines(watched: _Watched) -> Iterator[bytes]:
    """Yield the text line by line, each with its newline; only ``\\n`` ends one."""
    remaining = b""
    while piece := watched.read_raw(BLOCK):
        lines = _split(remaining + piece)
        # A line that is too long goes on as it is, for the error to name its row.
        remaining = (
            b"" if lines[-1].endswith(b"\n") or len(lines[-1]) > RECORD_LIMIT else lines.pop()
        )
        yield from lines
    if remaining:
        yield remaining


def _split(text: bytes) -> list[bytes]:
    """Lines with their newlines, at ``\\n`` only; the last one may lack it."""
    *complete, last = text.split(b"\n")
    return [line + b"\n" for line in complete] + ([last] if last else [])
