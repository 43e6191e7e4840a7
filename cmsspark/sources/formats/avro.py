"""Avro log files, read without a JVM: only the required fields, with every record
counted and damage reported.

Compiled code reads plain files. polars, which is fast and rejects most damage, reads
the others, and all files where compiled code is unavailable. A file that both reject
(unsupported codec or type, bad text, a truncated file) is read again by fastavro, which
decides.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final

import msgspec

from cmsspark.base.access import AccessBatch, Quarantined
from cmsspark.base.errors import DataError
from cmsspark.sources.formats import avro_blocks, fast_json
from cmsspark.sources.formats.avro_blocks import CODECS, SYNC, Block, DamagedBlock
from cmsspark.sources.values import Malformed

#: Records in a batch: few enough for the CPU caches, many enough for numpy's fixed costs.
BATCH = 8192


class _Fork:
    """polars uses threads and deadlocks in a process forked from one that has used it.
    fastavro reads there instead.
    """

    had_polars = False

    @classmethod
    def note(cls) -> None:
        """Record in the child whether the parent may have such threads."""
        cls.had_polars = "polars" in sys.modules


os.register_at_fork(after_in_child=_Fork.note)


def decode(
    decoder: Any,
    content: bytes,
    file: str,
    on_schema: Callable[[Mapping[str, Any], int], None] = lambda fields, records: None,
    damaged: Callable[[str], None] | None = None,
) -> Iterator[AccessBatch]:
    """Batches of the accesses in an Avro file; ``decoder`` has ``avro_fields``,
    ``avro_required``, ``avro_record`` and ``take``, and may have ``take_columns`` and
    ``take_numbered``, which also get the number of records in the file.
    ``on_schema`` is called with the file's fields and their types, and its number of
    records.

    An empty file has no records. Raises DataError (65) for a file of another schema,
    and for a damaged file unless ``damaged`` is given: it is called with the reason,
    and the blocks before the damage are read.
    """
    if not content:
        return
    try:
        # The schema and the codec in the file's header.
        import fastavro

        reader = fastavro.reader(io.BytesIO(content))
        schema, codec = reader.writer_schema, reader.codec
    except Exception as error:  # fastavro raises many kinds for damage
        if damaged is None:
            raise _damaged(error, file) from None
        damaged(avro_blocks.describe(error))
        return
    fields = _fields(schema, decoder.avro_required, file)
    blocks = _blocks(content, codec, file, damaged)
    needed = [field for field in decoder.avro_fields if field in fields]
    table = None
    if blocks is not None and _are_plain(fields.values()):
        try:
            batch = _compiled(decoder, content, codec, schema, blocks, file)
        except avro_blocks.DamagedBlock:  # fastavro says which block it is
            batch, blocks = None, None
        if batch is not None:
            yield batch
            on_schema(fields, batch.read)
            return
        if blocks is not None and not _Fork.had_polars:
            table = _with_polars(content, needed, sum(block.records for block in blocks))
            if table is not None and _hold_more(
                content, codec, schema, blocks, decoder.avro_required
            ):
                table = None
    position = 0
    for part in (
        table.iter_slices(BATCH)
        if table is not None
        else _slow_parts(content, codec, decoder, file, damaged)
    ):
        batch = AccessBatch()
        if isinstance(part, list):
            _take_each(decoder, part, batch, range(position, position + len(part)), file)
        else:
            _take_columns(decoder, part, batch, position, file)
        position += batch.read
        yield batch
    on_schema(fields, position)


def _compiled(
    decoder: Any, content: bytes, codec: str, schema: Any, blocks: list[Block], file: str
) -> AccessBatch | None:
    """Read a plain file by compiled code; Python reads records that it skips. None
    if the file is not plain.
    """
    fields = {field["name"]: field["type"] for field in schema["fields"]}
    result: tuple[AccessBatch, fast_json.Left] | None = decoder.fast_avro.read(
        content, codec, fields, blocks
    )
    if result is None:
        return None
    batch, remaining = result
    if remaining.numbers:
        rest_rows = avro_blocks.read_records(remaining.content, len(remaining.numbers), schema)
        rows: Rows = [{name: row.get(name) for name in decoder.avro_fields} for row in rest_rows]
        _take_each(decoder, rows, batch, remaining.numbers, file)
    return batch


#: Rows of an Avro file, by name.
Rows = list[Mapping[str, Any]]


def _slow_parts(
    content: bytes, codec: str, decoder: Any, file: str, damaged: Callable[[str], None] | None
) -> Iterator[Rows]:
    rows: Rows = []
    for row in _intact_rows(content, codec, file, damaged):
        rows.append({name: row.get(name) for name in decoder.avro_fields})
        if len(rows) == BATCH:
            yield rows
            rows = []
    yield rows


def _take_columns(decoder: Any, frame: Any, batch: AccessBatch, position: int, file: str) -> None:
    """Take the records of a frame at once where all fields are text or null and the
    decoder supports it.
    """
    import polars

    # The decoder works with lists, so no polars expressions are used from here on.
    present = {name: frame[name].to_list() for name in frame.columns}
    columns = {name: present.get(name) or [None] * frame.height for name in decoder.avro_fields}
    if hasattr(decoder, "take_columns") and all(
        kind in (polars.String, polars.Null) for kind in frame.dtypes
    ):
        batch.read += frame.height
        for row, reason in decoder.take_columns(columns, batch, position).items():
            values = {name: column[row] for name, column in columns.items()}
            batch.malformed.append(_quarantined(values, reason, position + row, file))
        return
    rows: Rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    _take_each(decoder, rows, batch, range(position, position + frame.height), file)


def _take_each(
    decoder: Any, rows: Rows, batch: AccessBatch, numbers: Sequence[int], file: str
) -> None:
    batch.read += len(rows)
    records, positions = [], []
    for number, row in zip(numbers, rows, strict=True):
        try:
            records.append(decoder.avro_record(row))
        except Malformed as error:
            batch.malformed.append(_quarantined(row, str(error), number, file))
        else:
            positions.append(number)
    if hasattr(decoder, "take_numbered"):
        decoder.take_numbered(records, positions, batch)
    else:
        decoder.take(records, batch)


def _quarantined(row: Mapping[str, Any], reason: str, position: int, file: str) -> Quarantined:
    raw = repr(row).encode()
    return Quarantined.cut(file, position, reason, raw, len(raw))


#: Types that polars reads without a panic, which would print a traceback.
_PLAIN = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


def _are_plain(kinds: Collection[Any]) -> bool:
    """Return whether all types are plain and records take bytes: otherwise a damaged
    count loops very long.
    """
    return all(map(_is_plain, kinds)) and any(kind != "null" for kind in kinds)


def _is_plain(kind: Any) -> bool:
    """Return whether a field's type is plain, or a union of a plain type and null."""
    branches = kind if isinstance(kind, list) else [kind]
    return len(branches) <= 2 and all(
        isinstance(branch, str) and branch in _PLAIN for branch in branches
    )


def _fields(schema: Any, required: str, file: str) -> dict[str, Any]:
    """Return the names and types of a schema's fields.

    Raises DataError (65) if the required one is not among them.
    """
    fields = (
        {field["name"]: field["type"] for field in schema.get("fields", ())}
        if isinstance(schema, dict)
        else {}
    )
    if required not in fields:
        names = list(fields)
        shown = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
        raise DataError(
            f"the Avro file has no field {required}", where=file, found=f"fields {shown}"
        )
    return fields


def _blocks(
    content: bytes, codec: str, file: str, damaged: Callable[[str], None] | None
) -> list[Block] | None:
    """Return the file's blocks.

    Where they are damaged, calls ``damaged`` and returns None, or raises DataError (65).
    """
    try:
        return avro_blocks.blocks(content, codec)
    except avro_blocks.DamagedBlock as error:
        if damaged is None:
            raise _damaged(error, file) from None
        damaged(avro_blocks.describe(error))
        return None


def _with_polars(content: bytes, columns: Sequence[str], records: int) -> Any:
    """Return the columns as a polars frame; None if polars fails or returns another
    number of records.
    """
    import polars
    from polars.exceptions import PanicException, PolarsError

    try:
        with _quiet():
            frame = polars.read_avro(io.BytesIO(content), columns=list(columns))
    except (PolarsError, PanicException, OSError, ValueError, TypeError, NotImplementedError):
        # PanicException, raised for flipped bytes, is not an Exception. fastavro
        # decides about the file.
        return None
    return frame if frame.height == records else None


def _hold_more(content: bytes, codec: str, schema: Any, blocks: list[Block], column: str) -> bool:
    """Return whether the blocks of a file hold more records than their headers name, of
    which polars drops the rest.

    All blocks become one, of one record more: nothing but a file that has it can be read.
    """
    import fastavro

    unpack = CODECS[codec]
    parts = [unpack(memoryview(content)[block.begin : block.end]) for block in blocks]
    if None in parts:
        return True
    joined = io.BytesIO()
    fastavro.writer(joined, schema, [], "null")
    sync = joined.getvalue()[-avro_blocks.SYNC :]
    records = sum(block.records for block in blocks) + 1
    for number in (records, sum(map(len, parts))):
        fastavro.schemaless_writer(joined, "long", number)
    joined.writelines([*parts, sync])
    return _with_polars(joined.getvalue(), [column], records) is not None


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what a Rust panic writes directly to stderr; the error is reported by cmsspark."""
    sys.stderr.flush()
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


def _intact_rows(
    content: bytes, codec: str, file: str, damaged: Callable[[str], None] | None
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file by fastavro.

    Damage raises DataError (65); with ``damaged``, the blocks before it count.
    """
    try:
        yield from _rows(content, codec)
    except avro_blocks.DamagedBlock as error:
        if damaged is None:
            raise _damaged(error, file) from None
        damaged(avro_blocks.describe(error))


def _rows(content: bytes, codec: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of each block that is intact, block by block. Raises DamagedBlock,
    which names the block.
    """
    import fastavro

    begin = avro_blocks.first_block(content)
    blocks: Any = fastavro.block_reader(
        io.BytesIO(content), handle_unicode_errors="surrogateescape"
    )
    while True:
        try:
            block = next(blocks, None)
            if block is None:
                return
            end = block.offset + block.size
            if codec == "snappy":
                packed_end = end - avro_blocks.SYNC
                check = content[packed_end - avro_blocks.SNAPPY_CHECK : packed_end]
                avro_blocks.check_snappy(block.bytes_.getbuffer(), check)
            # The rows of a block that holds as many as its header names.
            size = len(block.bytes_.getbuffer())
            if block.num_records > size:
                raise avro_blocks.DamagedBlock(
                    f"its header names {block.num_records} records in {size} bytes"
                )
            rows: list[Any] = list(block)
            if block.num_records < 0 or block.bytes_.read(1):
                raise avro_blocks.DamagedBlock(
                    f"it holds more than the {block.num_records} records that its header names"
                )
        except Exception as error:  # fastavro raises many kinds for damage
            raise avro_blocks.DamagedBlock(
                f"the block at byte {begin}: {avro_blocks.describe(error)}"
            ) from None
        yield from rows
        begin = end


def _damaged(error: Exception, file: str) -> DataError:
    return DataError(
        "an Avro file cannot be read",
        where=file,
        found=avro_blocks.describe(error),
        next_step="fetch the file again from its source; --accept-damaged reads what is intact",
    )


# Avro containers read by byte ranges, block by block: a file of any size is shared
# between tasks, and memory stays flat.

_STEP: Final = 1 << 20
#: The most bytes of a block's two numbers.
_NUMBERS: Final = 20


class Container(msgspec.Struct, frozen=True):
    """A file's header: schema without logical types, codec, sync marker, and if the
    first block begins.
    """

    schema: Any
    codec: str
    sync: bytes
    begin: int


class PlainBlock(msgspec.Struct, frozen=True):
    """A block's records, and at which byte of the file it begins. ``content`` is decompressed."""

    begin: int
    records: int
    content: Any


def open_container(stream: IO[bytes], file: str) -> Container | None:
    """Read a header; None for an empty file. Raises DataError (65) if it is damaged
    or names another codec.
    """
    import fastavro

    head = stream.read(_STEP)
    if not head:
        return None
    try:
        while True:
            try:
                begin = avro_blocks.first_block(head)
                break
            except DamagedBlock:
                # A header of more than a step is read whole; one that is damaged ends
                # with the file.
                more = stream.read(_STEP)
                if not more or len(head) > 64 * _STEP:
                    raise
                head += more
        reader = fastavro.reader(io.BytesIO(head))
        schema, codec = without_logical_types(reader.writer_schema), reader.codec
    except Exception as error:  # fastavro raises many kinds for damage
        raise damaged(file, error) from None
    if codec not in CODECS:
        raise DataError(
            f"the codec of the Avro file is none of {', '.join(CODECS)}",
            where=file,
            found=f"the codec {codec}",
            next_step="fetch the file again from its source, or write it with another codec",
        )
    return Container(schema, codec, head[begin - SYNC : begin], begin)


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values come as they are stored: times as numbers."""
    if isinstance(schema, dict):
        plain = {
            name: without_logical_types(value)
            for name, value in schema.items()
            if name != "logicalType"
        }
        # A decimal stays one: its bytes are no text.
        return schema if schema.get("logicalType") == "decimal" else plain
    return (
        [without_logical_types(branch) for branch in schema]
        if isinstance(schema, list)
        else schema
    )


def blocks_of_range(
    stream: IO[bytes], container: Container, file: str, first: int = 0, last: int | None = None
) -> Iterator[PlainBlock]:
    """Yield the blocks of a range of bytes, decompressed.

    Raises DataError (65) that names file and block for damage.
    """
    window = _Window(stream)
    begin = (
        container.begin
        if first <= container.begin - SYNC
        else _next_block(window, container.sync, first)
    )
    unpack = CODECS[container.codec]
    while begin is not None and (last is None or begin - SYNC < last):
        try:
            numbers = window.read(begin, _NUMBERS)
            if not numbers:
                return
            block = avro_blocks.block_at(numbers, begin, container.codec)
            packed = window.read(block.begin, block.end - block.begin + SYNC)
            if packed[block.end - block.begin :] != container.sync:
                raise DamagedBlock("it is not followed by the file's sync marker")
            content = unpack(memoryview(packed)[: block.end - block.begin])
            if content is None:
                raise DamagedBlock("its content cannot be decompressed, or its checksum differs")
        except DamagedBlock as error:
            raise damaged(file, DamagedBlock(f"the block at byte {begin}: {error}")) from None
        yield PlainBlock(begin, block.records, content)
        begin = block.end + SYNC


def _next_block(window: _Window, sync: bytes, first: int) -> int | None:
    """Return where the first block begins whose marker begins at ``first`` or later."""
    at = first
    while piece := window.read(at, _STEP):
        offset = piece.find(sync)
        if offset >= 0:
            return at + offset + SYNC
        if len(piece) < _STEP:
            return None
        at += len(piece) - SYNC + 1
    return None


class _Window:
    """Reads pieces of a file that mostly follow each other."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._begin = 0
        self._buffer = b""

    def read(self, at: int, count: int) -> bytes:
        """Return the bytes from ``at`` on; fewer at the end of the file."""
        offset = at - self._begin
        if not 0 <= offset <= len(self._buffer):
            self._begin, self._buffer, offset = at, b"", 0
        if offset + count > len(self._buffer):
            self._buffer = self._buffer[offset:]
            self._begin, offset = at, 0
            self._stream.seek(self._begin + len(self._buffer))
            self._buffer += self._stream.read(max(_STEP, count - len(self._buffer)))
        return self._buffer[offset : offset + count]


def damaged(file: str, error: Exception) -> DataError:
    """Return the error about a damaged file."""
    return DataError(
        "an Avro file of a dump cannot be read",
        where=file,
        found=avro_blocks.describe(error),
        next_step="fetch the file again from its source",
    )
