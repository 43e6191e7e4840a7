"""The compressions of Spark's event logs: the suffix of a file's name or its first
bytes → plain bytes, in pieces.

Spark names its own stream formats: ``.lz4`` is the block stream of lz4-java and
``.snappy`` that of snappy-java, which no tool of that name reads. Frames of other
programs (``lz4``, ``gzip``, ``bzip2``) are read, too.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from cmsspark.base.errors import SettingsError

_PIECE: Final = 1 << 18
#: lz4-java and snappy-java write blocks of 32 kB to 32 MB: a larger one is damage,
#: which must not take the memory.
_MOST_BLOCK: Final = 64 << 20
_UNFILLED: Final = b"\xff" * _PIECE
_LZ4_BLOCK: Final = b"LZ4Block"
_SNAPPY: Final = b"\x82SNAPPY\x00"
#: First bytes → codec.
_MAGIC: Final = (
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (_LZ4_BLOCK, "lz4"),
    (_SNAPPY, "snappy"),
    (b"\x04\x22\x4d\x18", "lz4 frame"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"ZV", "lzf"),
)


class CutLog(Exception):
    """The compressed data end in their middle, or are damaged from there on; all before
    was returned.
    """


def pieces(stream: IO[bytes], where: str) -> Iterator[bytes]:
    """Yield the plain bytes of an event log.

    Raises CutLog after what could be read, SettingsError (78) where no library reads it.
    """
    start = stream.read(len(_LZ4_BLOCK))
    name = next((name for magic, name in _MAGIC if start.startswith(magic)), "plain")
    if name == "lzf":
        raise SettingsError(
            "the compression of the event log cannot be read",
            where=where,
            found="LZF, for which no Python library exists",
            next_step="spark-submit … --conf spark.eventLog.compression.codec=zstd writes logs that can be read",
        )
    yield from _READERS[name](_Ahead(start, stream))


class _Ahead(io.RawIOBase):
    """A stream, and the bytes of it that were read already."""

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self._start, self._stream = start, stream

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1, /) -> bytes:
        if count < 0:
            count = _PIECE
        start, self._start = self._start[:count], self._start[count:]
        return start + self._stream.read(count - len(start)) if len(start) < count else start

    def read_exactly(self, count: int, *, may_end: bool = False) -> bytes:
        """``count`` bytes; empty at the end where ``may_end``. Raises CutLog."""
        data = b""
        while len(data) < count and (more := self.read(count - len(data))):
            data += more
        if len(data) < count and not (may_end and not data):
            raise CutLog(f"a block has {len(data)} instead of {count} bytes")
        return data


def _plain(stream: _Ahead) -> Iterator[bytes]:
    while piece := stream.read(_PIECE):
        yield piece


def _arrow(codec: str) -> Callable[[_Ahead], Iterator[bytes]]:
    def read(stream: _Ahead) -> Iterator[bytes]:
        import pyarrow as pa

        if not pa.Codec.is_available(codec):
            raise SettingsError(
                f"this pyarrow cannot read {codec}", next_step="pip install pyarrow"
            )
        source = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec)
        yield from _into_buffers(source)

    return read


def _into_buffers(source: Any) -> Iterator[bytes]:
    """Yield what pyarrow returns, also of the piece in which the stream is cut: for
    that it returns an error alone.

    It has filled the buffer until there. 0xff occurs nowhere in UTF-8, so the rest can
    be distinguished.
    """
    buffer = bytearray(_PIECE)
    while True:
        buffer[:] = _UNFILLED
        try:
            count = source.readinto(buffer)
        except OSError as error:
            yield bytes(buffer).partition(b"\xff")[0]
            raise CutLog(str(error)) from None
        if not count:
            return
        yield bytes(memoryview(buffer)[:count])


def _lz4_blocks(stream: _Ahead) -> Iterator[bytes]:
    import cramjam

    while head := stream.read_exactly(21, may_end=True):
        magic, token, packed, plain, _ = struct.unpack("<8sBiii", head)
        if magic != _LZ4_BLOCK or not (0 <= packed <= _MOST_BLOCK and 0 <= plain <= _MOST_BLOCK):
            raise CutLog("no block of lz4-java follows")
        if not packed:
            continue  # the mark at an end; another stream may follow
        data = stream.read_exactly(packed)
        if token & 0xF0 == 0x10:
            yield data
            continue
        try:
            yield bytes(cramjam.lz4.decompress_block(data, output_len=plain))
        except (cramjam.DecompressionError, ValueError) as error:
            raise CutLog(str(error)) from None


def _snappy_blocks(stream: _Ahead) -> Iterator[bytes]:
    import cramjam

    stream.read_exactly(16)
    while head := stream.read_exactly(4, may_end=True):
        if head == _SNAPPY[:4]:
            stream.read_exactly(12)  # another stream follows
            continue
        (packed,) = struct.unpack(">i", head)
        if not 0 <= packed <= _MOST_BLOCK:
            raise CutLog("no block of snappy-java follows")
        try:
            yield bytes(cramjam.snappy.decompress_raw(stream.read_exactly(packed)))
        except (cramjam.DecompressionError, ValueError) as error:
            raise CutLog(str(error)) from None


_READERS: Final[dict[str, Callable[[_Ahead], Iterator[bytes]]]] = {
    "plain": _plain,
    "zstd": _arrow("zstd"),
    "lz4 frame": _arrow("lz4"),
    "lz4": _lz4_blocks,
    "snappy": _snappy_blocks,
    "gzip": _arrow("gzip"),
    "bzip2": _arrow("bz2"),
}
