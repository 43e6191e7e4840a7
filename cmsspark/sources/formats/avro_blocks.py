"""The blocks of an Avro container by their own headers: whether they follow each other,
and how many records they name.

Readers of Avro stop quietly at some damage: a count below zero is no record to them,
half a header is the end of the file. What they read must come to the sum of the
headers.

Content that does not fit its codec is damage. Snappy, bzip2 and xz have a checksum,
zstandard may have one; ``null`` and ``deflate`` have none.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_MAGIC: Final = b"Obj\x01"
#: Length of the marker behind the header and behind each block.
SYNC: Final = 16
#: Behind what snappy packed stands the CRC-32 of the plain content, which neither
#: fastavro nor snappy looks at.
SNAPPY_CHECK: Final = 4
#: A block of no records holds what its codec makes of nothing.
_NOTHING: Final = 64
#: Bytes that a byte of a block becomes at most, by its codec; each record takes one of
#: them. With a larger count polars asks for memory and ends the process where there is
#: none. The other codecs it does not read.
MOST: Final[Mapping[str, float]] = {"null": 1, "snappy": 22, "deflate": 1033}


class Block(NamedTuple):
    """The number of records in a block's header, and where its packed content lies."""

    records: int
    begin: int
    end: int


class DamagedBlock(ValueError):
    """What is wrong with a container, and at which byte."""


def describe(error: Exception) -> str:
    """Return what is wrong with a container, in one line; fastavro raises many kinds of
    errors for damage.
    """
    kind = "" if isinstance(error, DamagedBlock) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split())[:300].removesuffix(":")


def blocks(content: bytes, codec: str) -> list[Block]:
    """Return a container's blocks. Raises :class:`DamagedBlock`."""
    blocks: list[Block] = []
    at = first_block(content)
    sync = content[at - SYNC : at]
    while at < len(content):
        begin = at
        block = _block(content, at, begin, codec)
        at = block.end
        if content[at : at + SYNC] != sync:
            raise DamagedBlock(
                f"the block at byte {begin} is not followed by the file's sync marker"
            )
        at += SYNC
        blocks.append(block)
    return blocks


def block_at(numbers: bytes, begin: int, codec: str) -> Block:
    """Return the block at byte ``begin`` of a file, of which ``numbers`` are the first bytes.

    Raises :class:`DamagedBlock`.
    """
    block = _block(numbers, 0, begin, codec)
    return Block(block.records, begin + block.begin, begin + block.end)


def _block(content: bytes, at: int, begin: int, codec: str) -> Block:
    """Return the block whose numbers stand at ``at``; ``begin`` is for messages."""
    count, at = _long(content, at)
    size, at = _long(content, at)
    if (
        size < 0
        or not 0 <= count <= size * MOST.get(codec, math.inf)
        or (not count and size > _NOTHING)
    ):
        raise DamagedBlock(f"a block at byte {begin} names {count} records in {size} bytes")
    return Block(count, at, at + size)


def check_snappy(plain: bytes | memoryview, check: bytes | memoryview) -> None:
    """Raise :class:`DamagedBlock` unless ``check``, the CRC-32 stored with the block,
    is that of ``plain``.
    """
    from isal import isal_zlib  # three times as quick as zlib; only files of snappy need it

    if isal_zlib.crc32(plain) != int.from_bytes(check, "big"):
        raise DamagedBlock("its CRC-32 differs from that of its content")


def first_block(content: bytes) -> int:
    """Return the byte behind a container's header, where its first block begins. Raises
    :class:`DamagedBlock`.
    """
    if not content.startswith(_MAGIC):
        raise DamagedBlock("this is no Avro file: its first bytes differ")
    at = len(_MAGIC)
    while True:
        pairs, at = _long(content, at)
        if pairs < 0:  # then the map's size in bytes follows
            pairs, at = -pairs, _long(content, at)[1]
        if not pairs:
            break
        for _ in range(2 * pairs):
            size, at = _long(content, at)
            if not 0 <= size <= len(content) - at:
                raise DamagedBlock("the header is cut short")
            at += size
    if at + SYNC > len(content):
        raise DamagedBlock("the header is cut short")
    return at + SYNC


def _long(content: bytes, at: int) -> tuple[int, int]:
    """Return a number as Avro writes it, and if it ends."""
    number = shift = 0
    while True:
        if at >= len(content):
            raise DamagedBlock("the file is cut short")
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise DamagedBlock("a number of more than 64 bits")


def read_records(content: bytes, count: int, schema: Any) -> list[Mapping[str, Any]]:
    """Return the records in ``content`` by name. Raises DamagedBlock where it does not
    hold exactly so many.
    """
    import fastavro

    if not count:
        if content:
            raise DamagedBlock("it holds something where its header names no record")
        return []
    # An array of them, which is read at once: their number, they, and the end.
    array = io.BytesIO()
    fastavro.schemaless_writer(array, "long", count)
    array.write(content)
    array.write(b"\0")
    size = array.tell()
    array.seek(0)
    kind = {"type": "array", "items": schema}
    try:
        rows: Any = fastavro.schemaless_reader(
            array, kind, None, handle_unicode_errors="surrogateescape"
        )
    except Exception as error:  # fastavro raises many kinds for damage
        raise DamagedBlock(f"{type(error).__name__}: {error}") from None
    if len(rows) != count or array.tell() != size:
        raise DamagedBlock(f"it does not hold exactly the {count} records that its header names")
    return list(rows)


def _snappy(block: memoryview) -> Any:
    import cramjam

    packed = block[:-SNAPPY_CHECK]
    try:
        # The size that the content names is reserved at once: a wrong one ends the
        # process where memory is limited.
        if cramjam.snappy.decompress_raw_len(packed) > len(packed) * MOST["snappy"]:
            return None
        content = bytes(cramjam.snappy.decompress_raw(packed))
        check_snappy(content, block[-SNAPPY_CHECK:])
    except (cramjam.DecompressionError, DamagedBlock):
        return None
    return content


def _deflate(block: memoryview) -> Any:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(block)
    except zlib.error:
        return None
    # fastavro cuts zlib's frame off, and leaves three of the four bytes of its checksum.
    checksum = zlib.adler32(content).to_bytes(4, "big")[:3]
    return content if inflate.eof and inflate.unused_data in (b"", checksum) else None


def _bzip2(block: memoryview) -> Any:
    import bz2

    return _one_stream(bz2.BZ2Decompressor(), block, OSError)


def _xz(block: memoryview) -> Any:
    import lzma

    return _one_stream(lzma.LZMADecompressor(), block, lzma.LZMAError)


def _zstandard(block: memoryview) -> Any:
    import cramjam

    try:
        return bytes(cramjam.zstd.decompress(block))
    except cramjam.DecompressionError:
        return None


def _one_stream(decompressor: Any, block: memoryview, damage: type[Exception]) -> Any:
    """Return the content of a block's only stream; None if it is damaged, cut short
    or followed by more.
    """
    try:
        content = decompressor.decompress(block)
    except (damage, EOFError):
        return None
    return content if decompressor.eof and not decompressor.unused_data else None


#: By codec, what a block holds; None where it is damaged.
CODECS: Final[Mapping[str, Callable[[memoryview], Any]]] = {
    "null": bytes,
    "snappy": _snappy,
    "deflate": _deflate,
    "bzip2": _bzip2,
    "xz": _xz,
    "zstandard": _zstandard,
}
