"""Avro containers read by byte ranges, block by block: a file of any size is shared
between tasks, and memory stays flat.

A block belongs to the range in which the sync marker before it begins, so that ranges
that cover a file read each block once. Every block is checked: its size, the marker
behind it, and the checksum of its codec.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from cmsspark.base.errors import DataError
from cmsspark.sources.formats import avro_blocks
from cmsspark.sources.formats.avro_blocks import CODECS, SYNC, DamagedBlock

_STEP: Final = 1 << 20
#: The most bytes of a block's two numbers.
_NUMBERS: Final = 20


@dataclass(frozen=True)
class Container:
    """A file's header: schema without logical types, codec, sync marker, and where the
    first block begins.
    """

    schema: Any
    codec: str
    sync: bytes
    begin: int


@dataclass(frozen=True)
class PlainBlock:
    """A block's records, and at which byte of the file it begins. ``content`` is decompressed."""

    begin: int
    records: int
    content: Any


def open_container(stream: IO[bytes], file: str) -> Container | None:
    """Read a header; None for an empty file. Raises DataError (65) where it is damaged
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
