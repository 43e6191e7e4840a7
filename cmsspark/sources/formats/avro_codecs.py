"""What a block of an Avro container holds, by the codec that packed it.

Content that does not fit its codec is damage. Snappy, bzip2 and xz have a checksum, zstandard may have one; ``null``
and ``deflate`` have none.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from cmsspark.sources.formats.avro_blocks import MOST, SNAPPY_CHECK, DamagedBlock, check_snappy


def _snappy(block: memoryview) -> Any:
    import cramjam

    packed = block[:-SNAPPY_CHECK]
    try:
        # The size that the content names is reserved at once: a wrong one ends the process where memory is limited.
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
    """Return the content of the only stream in a block; None where it is damaged, cut short or followed by something.
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
