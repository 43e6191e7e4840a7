r"""The dumps' CSV as sqoop writes it, read into Arrow tables (``docs/counting.md``, rule 19).

Columns go by position, without a header. Any text may be enclosed in ``"``, ``\`` makes the next character stand for
itself in and out of quotes, a newline inside quotes belongs to the value, ``null`` is null, columns beyond the known
ones come last and are left alone. What pyarrow's reader surely reads rightly it reads; a file that it refuses or
might mistake goes through ``records``, which reads it after all or says the row and the reason.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Final, cast

from cmsspark.errors import DataError
from cmsspark.schemas import Column, Table
from cmsspark.sources.lines import plain
from cmsspark.sources.records import RECORD_LIMIT, check_start, check_width, records, value

#: Bytes parsed at once.
BLOCK: Final = 8 * 1024 * 1024
#: Bytes, and records, at a file's start that are checked in all their columns.
SAMPLE: Final = 64 * 1024
SAMPLE_RECORDS: Final = 100
#: What pyarrow might take otherwise than rule 19.
_MARKS: Final = (b"\r", b'"', b"\\")
#: Rows in a piece of the slow way.
_SLOW_ROWS: Final = 50_000


def read_table(source: str | IO[bytes], table: Table, columns: Sequence[str], name: str | None = None) -> Iterator[Any]:
    """``pyarrow.Table`` pieces of one part file (a local path or a seekable binary stream), with ``columns`` in order.

    string columns are text (bytes that are no UTF-8 become U+FFFD), long is int64, double is float64; any may be
    null. A file without records gives nothing. Raises DataError (65) that names file, row and value for a header row,
    too few columns, a number that is none, an unclosed quote, columns in another order, and damaged gzip.
    """
    file = name or (source if isinstance(source, str) else str(getattr(source, "name", "a stream")))
    if isinstance(source, str):
        with open(source, "rb") as stream:
            yield from _pieces(stream, table, columns, file)
    else:
        yield from _pieces(source, table, columns, file)


def arrow_schema(table: Table, columns: Sequence[str]) -> Any:
    """The ``pyarrow.Schema`` of what :func:`read_table` yields."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "long": pa.int64(), "double": pa.float64()}
    types = {column.name: kinds[column.type] for column in table.columns}
    return pa.schema([(column, types[column]) for column in columns])


def _pieces(stream: IO[bytes], table: Table, columns: Sequence[str], file: str) -> Iterator[Any]:
    import pyarrow as pa

    watched = _Watched(plain(stream, file), file)
    width = check_start(watched.start(), table, file)
    if width == 0:
        return
    done = 0
    try:
        for piece in _fast(watched, table, columns, width):
            done += piece.num_rows
            yield piece
        watched.check_quotes()
    except (pa.ArrowInvalid, _Doubtful):
        # From the start again, by the letter; the rows that were handed on already are passed over.
        stream.seek(0)
        text = _lines(_Watched(plain(stream, file), file))
        yield from _slow(records(text, file), table, columns, file, done)


def _fast(watched: _Watched, table: Table, columns: Sequence[str], width: int) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    schema = arrow_schema(table, columns)
    names = [*table.names, *(f"extra {number}" for number in range(width - len(table.columns)))]
    reader = csv.open_csv(
        pa.PythonFile(watched, mode="r"),
        read_options=csv.ReadOptions(column_names=names, block_size=BLOCK),
        parse_options=csv.ParseOptions(escape_char="\\", double_quote=True, newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=schema, include_columns=list(columns), null_values=["null"], strings_can_be_null=True
        ),
    )
    doubles = [field.name for field in schema if pa.types.is_floating(field.type)]
    with reader:
        for batch in reader:
            if not all(pc.all(pc.is_finite(batch[name])).as_py() in (True, None) for name in doubles):
                raise _Doubtful
            if batch.num_rows:
                yield pa.Table.from_batches([batch], schema)


def _slow(found: Iterable[list[bytes]], table: Table, columns: Sequence[str], file: str, done: int) -> Iterator[Any]:
    import pyarrow as pa

    places = {column.name: place for place, column in enumerate(table.columns)}
    wanted: list[tuple[int, Column]] = [(places[name], table.columns[places[name]]) for name in columns]
    schema = arrow_schema(table, columns)
    numbered = islice(enumerate(found, 1), done, None)
    while chunk := list(islice(numbered, _SLOW_ROWS)):
        for row, fields in chunk:
            check_width(fields, table, file, row)
        arrays = [
            pa.array([value(fields[place], column, file, row) for row, fields in chunk], schema.field(column.name).type)
            for place, column in wanted
        ]
        yield pa.Table.from_arrays(arrays, schema=schema)


class _Doubtful(Exception):
    """The text holds what pyarrow might read otherwise than rule 19."""


class _Watched(io.RawIOBase):
    """The plain text of a part file; damage is named, and what pyarrow would take otherwise is noticed on the way."""

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

    def start(self) -> list[list[bytes]]:
        """The first whole records; :meth:`read` gives their text again."""
        wanted = SAMPLE
        while True:
            piece = self.read_raw(wanted - len(self._start))
            self._start += piece
            is_whole = not piece
            if is_whole or len(self._start) >= wanted:
                lines = _split(self._start)
                found = list(islice(records(lines, self._file, is_whole=is_whole), SAMPLE_RECORDS))
                if found or is_whole:
                    return found
                # The first record is longer than that.
                wanted *= 4

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as pyarrow asks for them. Raises _Doubtful where it would split rows at a lone ``\\r``."""
        if self._start:
            piece, self._start = self._start, b""
        else:
            piece = self.read_raw(BLOCK if size < 0 else size)
        # Searches for one byte cost next to nothing; most dumps have none of these.
        if self._last in _MARKS or any(mark in piece for mark in _MARKS):
            self._look(self._last + piece, piece)
        self._last = piece[-1:]
        return piece

    def _look(self, whole: bytes, piece: bytes) -> None:
        if b"\r" in whole and whole.count(b"\r") - whole.endswith(b"\r") != whole.count(b"\r\n"):
            raise _Doubtful
        if b'"' in piece:
            self._quotes += piece.count(b'"') - whole.count(b'\\"')
        self._escapes = self._escapes or b"\\\\" in whole

    def check_quotes(self) -> None:
        """After the end: raise _Doubtful where a quote that nothing closes may have swallowed rows."""
        if self._quotes % 2 or (self._quotes and self._escapes):
            raise _Doubtful

    def read_raw(self, size: int) -> bytes:
        """Up to ``size`` bytes, none at the end."""
        from isal import isal_zlib

        bad_data = cast("type[Exception]", isal_zlib.error)  # its stub says it is an instance
        try:
            return bytes(self._stream.read(size))
        except (EOFError, OSError, zlib.error, bad_data) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                "a gzip file is damaged", where=self._file, found=reason, next_step="fetch the dump again"
            ) from None


def _lines(watched: _Watched) -> Iterator[bytes]:
    """The text line by line, each with its newline; only ``\\n`` ends one."""
    rest = b""
    while piece := watched.read_raw(BLOCK):
        lines = _split(rest + piece)
        # A line that is too long goes on as it is, for the error to name its row.
        rest = b"" if lines[-1].endswith(b"\n") or len(lines[-1]) > RECORD_LIMIT else lines.pop()
        yield from lines
    if rest:
        yield rest


def _split(text: bytes) -> list[bytes]:
    """Lines with their newlines, at ``\\n`` only; the last one may lack it."""
    *whole, last = text.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])
