"""Packed files as plain bytes: all streams, members or frames of a file, or an error.

Each packing allows several streams behind each other. Libraries differ in what they do
with the bytes behind a stream, and some ignore those that they cannot read. Here a file
is read by its own structure: behind a stream stands another one of the same packing,
what the format allows as padding, or the end of the file. Anything else is an error
with the number of the byte.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, Protocol

#: Packed bytes that are read at once.
_STEP: Final = 128 * 1024
#: The largest window of a zstd frame that is read, as zstd's own program does without
#: ``--long``.
ZSTD_WINDOW: Final = 128 * 1024 * 1024
_SKIPPABLE: Final = frozenset(bytes([number]) + b"\x2a\x4d\x18" for number in range(0x50, 0x60))
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LZ4: Final = b"\x04\x22\x4d\x18"
_SNAPPY: Final = b"\xff\x06\0\0sNaPpY"
_XZ: Final = b"\xfd7zXZ\0"


class UnreadableStream(Exception):
    """What is wrong with packed bytes, and at which byte; ``fault`` follows the name of
    the packing.
    """

    def __init__(self, reason: str, fault: str = "file is damaged", next_step: str = "") -> None:
        super().__init__(reason)
        self.fault = fault
        self.next_step = next_step


class PackedSource:
    """The bytes of a packed file, in order; ``position`` is that of the next one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._ahead = b""
        self.position = 0

    def peek(self, count: int) -> bytes:
        """Return the next bytes without taking them; fewer at the end of the file."""
        while len(self._ahead) < count and (piece := self._stream.read(_STEP)):
            self._ahead += piece
        return self._ahead[:count]

    def take_some(self, count: int = _STEP) -> bytes:
        """Take up to ``count`` bytes, none at the end of the file."""
        piece, self._ahead = self._ahead or self._stream.read(_STEP), b""
        if len(piece) > count:
            piece, self._ahead = piece[:count], piece[count:]
        self.position += len(piece)
        return piece

    def put_back(self, piece: bytes) -> None:
        """Make bytes that were taken last the next ones again."""
        self._ahead = piece + self._ahead
        self.position -= len(piece)

    def take(self, count: int) -> bytes:
        """Take so many bytes. Raises UnreadableStream where the file ends before."""
        piece = self.peek(count)
        if len(piece) < count:
            raise self.cut()
        self._ahead = self._ahead[count:]
        self.position += count
        return piece

    def skip_zeros(self) -> int:
        """Take all bytes of 0 that come next and return their number."""
        begin = self.position
        while piece := self.take_some():
            if content := piece.lstrip(b"\0"):
                self.put_back(content)
                break
        return self.position - begin

    def cut(self) -> UnreadableStream:
        """Return the error of a file that ends within a stream."""
        return UnreadableStream(f"it is cut short at byte {self.position + len(self._ahead)}")

    def foreign(self) -> UnreadableStream:
        """Return the error of bytes behind a stream that begin none."""
        head = self.peek(8)
        return UnreadableStream(
            f"no stream begins at byte {self.position}, where the one before ends: {head.hex(' ')}"
        )


class _Part(Protocol):
    """A stream of a packed file. ``read`` returns up to ``size`` of its plain bytes,
    none once it ended and was checked. Raises UnreadableStream.
    """

    def read(self, size: int) -> bytes: ...


#: Opens the stream that comes next in a file, None at its end. Raises UnreadableStream.
OpenPart = Callable[[PackedSource], _Part | None]


class Unpacked:
    """The plain bytes of a packed file. Reading raises UnreadableStream."""

    def __init__(self, stream: IO[bytes], open_part: OpenPart) -> None:
        self._source = PackedSource(stream)
        self._open = open_part
        self._part: _Part | None = None
        self.at_end = False

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end of the file."""
        while not self.at_end:
            self._part = self._part or self._open(self._source)
            if self._part is None:
                self.at_end = True
            elif piece := self._part.read(size):
                return piece
            else:
                self._part = None
        return b""

    def readinto(self, room: memoryview) -> int:
        """Fill ``room`` as far as one read goes, and return the number of bytes."""
        piece = self.read(len(room))
        room[: len(piece)] = piece
        return len(piece)


class _Stream:
    """A stream that a decompressor of Python's kind reads and ends by itself."""

    def __init__(self, source: PackedSource, decompressor: Any, errors: Any) -> None:
        self._source = source
        self._decompressor = decompressor
        self._errors = errors
        self._begin = source.position

    def read(self, size: int) -> bytes:
        while not self._decompressor.eof:
            packed = b""
            if self._decompressor.needs_input and not (packed := self._source.take_some()):
                raise self._source.cut()
            try:
                piece: bytes = self._decompressor.decompress(packed, size)
            except self._errors as error:
                raise UnreadableStream(
                    f"the stream from byte {self._begin} on: {state_reason(error)}"
                ) from None
            if self._decompressor.eof:
                self._source.put_back(self._decompressor.unused_data)
            if piece:
                return piece
        return b""


def state_reason(error: BaseException) -> str:
    """Return what an error of a decompressor says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def open_gzip(source: PackedSource) -> _Part | None:
    """Open the next member. Bytes of 0 behind a member are padding, as for gzip itself."""
    from isal import igzip_lib

    if source.position:
        source.skip_zeros()
    head = source.peek(2)
    if not head:
        return None
    if head != b"\x1f\x8b":
        raise source.foreign()
    decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    return _Stream(source, decompressor, igzip_lib.error)


def open_bzip2(source: PackedSource) -> _Part | None:
    """Open the next stream; bzip2 has no padding."""
    head = source.peek(4)
    if not head:
        return None
    if head[:3] != b"BZh":
        raise source.foreign()
    return _Stream(source, bz2.BZ2Decompressor(), OSError)


def open_xz(source: PackedSource) -> _Part | None:
    """Open the next stream; the padding behind a stream is a multiple of four bytes of 0."""
    padding = source.skip_zeros() if source.position else 0
    if padding % 4:
        raise UnreadableStream(
            f"the {padding} bytes of padding before byte {source.position} are no multiple of 4"
        )
    head = source.peek(len(_XZ))
    if not head:
        return None
    if head != _XZ:
        raise (
            source.foreign() if len(head) == len(_XZ) or head != _XZ[: len(head)] else source.cut()
        )
    return _Stream(source, lzma.LZMADecompressor(lzma.FORMAT_XZ), lzma.LZMAError)


class _Frame:
    """A frame of zstd or lz4: ``lengths`` are those of its pieces, found by its own
    structure. Arrow unpacks these bytes and no others.
    """

    closed = False

    def __init__(self, source: PackedSource, lengths: Iterator[int], codec: str) -> None:
        import pyarrow as pa

        self._source = source
        self._lengths = lengths
        self._begin = source.position
        self._remaining = 0
        self._is_whole = False
        self._packed = _PackedFrame(self)
        self._plain: Any = pa.CompressedInputStream(pa.PythonFile(self._packed, mode="r"), codec)
        self._fault: UnreadableStream | None = None

    def next_packed(self, size: int) -> bytes:
        """Take up to ``size`` packed bytes of the frame, none behind it."""
        pieces = []
        try:
            while size > 0 and not self._is_whole:
                if not self._remaining:
                    self._remaining = next(self._lengths, 0)
                    self._is_whole = not self._remaining
                    continue
                piece = self._source.take_some(min(size, self._remaining))
                if not piece:
                    raise self._source.cut()
                self._remaining -= len(piece)
                size -= len(piece)
                pieces.append(piece)
        except UnreadableStream as fault:
            # What stands before the fault is unpacked first.
            self._fault = fault
            self._is_whole = True
        return b"".join(pieces)

    def read(self, size: int) -> bytes:
        try:
            piece: bytes = self._plain.read(size)
        except OSError as error:
            if error.errno is not None:
                raise
            raise self._fault or UnreadableStream(
                f"the frame from byte {self._begin} on: {state_reason(error)}"
            ) from None
        if not piece and (
            self._fault
            or not (self._is_whole or (not self._remaining and not next(self._lengths, 0)))
        ):
            raise self._fault or UnreadableStream(
                f"the frame from byte {self._begin} on ends before byte {self._source.position}"
            )
        return piece


class _PackedFrame:
    """The packed bytes of a frame as a file that Arrow reads."""

    closed = False

    def __init__(self, frame: _Frame) -> None:
        self.read = frame.next_packed

    def close(self) -> None:
        """Do nothing: the caller closes the file."""


def open_frame(source: PackedSource) -> _Part | None:
    """Open the next frame of zstd or lz4, behind all that may be skipped."""
    while (magic := source.peek(4)) in _SKIPPABLE:
        size = int.from_bytes(source.take(8)[4:], "little")
        while size:
            piece = source.take_some(min(size, _STEP))
            if not piece:
                raise source.cut()
            size -= len(piece)
    if not magic:
        return None
    if magic == _ZSTD:
        return _Frame(source, _zstd_lengths(source), "zstd")
    if magic == _LZ4:
        return _Frame(source, _lz4_lengths(source), "lz4")
    if magic[1:] == _ZSTD[1:] and 0x22 <= magic[0] < 0x28:
        raise UnreadableStream(
            f"at byte {source.position} begins a frame of zstd 0.{magic[0] - 0x20}",
            "file is of a version before 1.0",
            "unpack the file with a zstd of its time, and pack it again",
        )
    raise source.foreign()


def _zstd_lengths(source: PackedSource) -> Iterator[int]:
    """Yield the lengths of a frame's header, its blocks and its checksum; RFC 8878."""
    begin = source.position
    head = source.peek(18)
    if len(head) < 6:
        raise source.cut()
    descriptor = head[4]
    is_single = bool(descriptor & 0x20)
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
    dictionary_at = 5 if is_single else 6
    size_at = dictionary_at + dictionary_bytes
    length = size_at + size_bytes
    if len(head) < length:
        raise source.cut()
    if descriptor & 0x08:
        raise UnreadableStream(f"the frame from byte {begin} on has a bit that is reserved")
    if any(head[dictionary_at:size_at]):
        number = int.from_bytes(head[dictionary_at:size_at], "little")
        raise UnreadableStream(
            f"the frame from byte {begin} on names dictionary {number}",
            "file was packed with a dictionary, which is not here",
            "unpack the file with zstd -d -D DICTIONARY, or pack it without one",
        )
    if is_single:
        window = int.from_bytes(head[size_at:length], "little") + (256 if size_bytes == 2 else 0)
    else:
        base = 1 << (10 + (head[5] >> 3))
        window = base + (base >> 3) * (head[5] & 7)
    if window > ZSTD_WINDOW:
        raise UnreadableStream(
            f"the frame from byte {begin} on needs {window:,} bytes",
            f"file has a window above the {ZSTD_WINDOW:,} bytes that are read",
            "unpack the file with zstd -d --long=31, or pack it without --long and --ultra",
        )
    yield length
    is_last = False
    while not is_last:
        block = source.peek(3)
        if len(block) < 3:
            raise source.cut()
        number = int.from_bytes(block, "little")
        is_last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == 3:
            raise UnreadableStream(f"the block at byte {source.position} is of no known kind")
        yield 3 + (1 if kind == 1 else size)
    if descriptor & 0x04:
        yield 4


def _lz4_lengths(source: PackedSource) -> Iterator[int]:
    """Yield the lengths of a frame's header, its blocks, its end and its checksum."""
    head = source.peek(7)
    if len(head) < 7:
        raise source.cut()
    flags = head[4]
    if flags >> 6 != 1 or flags & 0x02:
        raise UnreadableStream(f"the frame from byte {source.position} on is of no known version")
    yield 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    while True:
        block = source.peek(4)
        if len(block) < 4:
            raise source.cut()
        size = int.from_bytes(block, "little") & 0x7FFFFFFF
        yield 4 + (size + (4 if flags & 0x10 else 0) if any(block) else 0)
        if not any(block):
            break
    if flags & 0x04:
        yield 4


class _SnappyChunks:
    """A file of snappy's own framing format: chunks, each with a checksum."""

    def __init__(self, source: PackedSource) -> None:
        self._source = source
        self._plain = b""

    def read(self, size: int) -> bytes:
        import cramjam

        source = self._source
        while not self._plain and source.peek(1):
            begin = source.position
            head = source.take(4)
            kind, length = head[0], int.from_bytes(head[1:], "little")
            body = source.take(length)
            if kind == 0xFF and head + body != _SNAPPY:
                raise UnreadableStream(f"at byte {begin} begins a stream of another kind")
            if kind in (0, 1):
                try:
                    self._plain = bytes(cramjam.snappy.decompress(_SNAPPY + head + body))
                except cramjam.DecompressionError as error:
                    raise UnreadableStream(
                        f"the chunk at byte {begin}: {state_reason(error)}"
                    ) from None
            elif kind < 0x80:
                raise UnreadableStream(f"the chunk at byte {begin} is of no known kind: {kind:#x}")
        piece, self._plain = self._plain[:size], self._plain[size:]
        return piece


def open_snappy(source: PackedSource) -> _Part | None:
    """Open all chunks of a file that begins as snappy's framing format does."""
    if not source.peek(1):
        return None
    if not source.position and source.peek(len(_SNAPPY)) != _SNAPPY:
        raise source.foreign()
    return _SnappyChunks(source)
