"""Where an event log is: one file, or a rolling folder ``eventlog_v2_<id>`` with
numbered files; and its lines.

A file may be compressed, still be written (``.inprogress``), or be cut. Rolling folders
that Spark compacted begin with their last ``.compact`` file, which replaces all before
it. Spark names its own stream formats: ``.lz4`` is the block stream of lz4-java and
``.snappy`` that of snappy-java, which no tool of that name reads. Frames of other
programs (``lz4``, ``gzip``, ``bzip2``) are read, too.
"""

from __future__ import annotations

import io
import itertools
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from cmsspark.base.errors import DataError, InputMissing, NotAllowed, SettingsError, UsageError
from cmsspark.filesystems.storage import Entry, Files, LocalFiles, is_local, local_path

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
        # Of the piece in which the stream is cut pyarrow returns an error alone, but has
        # filled the buffer until there. 0xff occurs nowhere in UTF-8: the rest is known.
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

    return read


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


#: A longer line is skipped and counted: plans of generated queries have reached some MB.
MOST_LINE: Final = 16 << 20
#: Event logs take 10 to 60 times less on disk. What takes so many times less, beyond
#: this, is no event log: reading it would cost far more than its size.
MOST_RATIO: Final = 500
_LEAST_PLAIN: Final = 256 << 20
_ROLLED: Final = re.compile(r"events_(?P<number>\d+)_(?P<rest>.+)")
#: What lies beside event logs and is none.
_OTHER: Final = ("appstatus_", ".", "_")
_SHOWN: Final = 10


class LogLines(msgspec.Struct):
    """The lines of an event log, in order, as bytes without newlines. What is wrong
    with it is counted on the way.
    """

    parts: list[str]
    open: Callable[[str], IO[bytes]]
    #: Parts whose end is missing, with the reason.
    cut: list[str] = msgspec.field(default_factory=list)
    #: Which numbers of a rolling folder are missing.
    missing: list[str] = msgspec.field(default_factory=list)
    #: Files of a rolling folder that repeat another one.
    repeated: list[str] = msgspec.field(default_factory=list)
    #: Files into which Spark compacted earlier ones.
    compacted: list[str] = msgspec.field(default_factory=list)
    long_lines: int = 0
    plain_bytes: int = 0
    disk_bytes: int = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            with self.open(part) as stream:
                yield from self._lines(part, stream)

    def _lines(self, part: str, stream: IO[bytes]) -> Iterator[bytes]:
        pieces: list[bytes] = []
        size = 0
        for piece in self._pieces(part, stream):
            self.plain_bytes += len(piece)
            if self.plain_bytes > _LEAST_PLAIN + MOST_RATIO * self.disk_bytes:
                raise DataError(
                    "an event log takes at most 500 times less on disk than its lines",
                    where=part,
                    found=f"{self.disk_bytes:,} bytes with more than {self.plain_bytes:,} bytes of lines",
                    next_step="decompress it and look at it: blank lines or one repeated line are not an event log",
                )
            *ended, end = piece.split(b"\n")
            if ended:
                pieces.append(ended[0])
                if size + len(ended[0]) <= MOST_LINE:
                    yield b"".join(pieces)
                else:
                    self.long_lines += 1
                yield from ended[1:]
                pieces, size = [], 0
            size += len(end)
            # Of a line that is too long nothing is kept.
            pieces = [*pieces, end] if size <= MOST_LINE else []
        if size > MOST_LINE:
            self.long_lines += 1
        elif last := b"".join(pieces):
            yield last

    def _pieces(self, part: str, stream: IO[bytes]) -> Iterator[bytes]:
        try:
            yield from pieces(_Counted(stream, self), part)  # type: ignore[arg-type]
        except CutLog as error:
            self.cut.append(f"{part.rpartition('/')[2]}: {error}")


def find_log(location: str, files: Files | None = None) -> LogLines:
    """Return the event log at a path or URI: a file, a rolling folder, or a folder with
    one of both.

    ``files`` serves what is not on this host's disks. Raises InputMissing (66),
    UsageError (2) for a folder of several logs, which it names.
    """
    local = is_local(location)
    path = local_path(location) if local else location
    files = files or LocalFiles()
    entry = files.stat(path)
    if entry is None:
        raise InputMissing("the event log does not exist", where=location)
    opener = (
        _open_local if local else (lambda part: io.BufferedReader(_Remote(files, part), 1 << 20))
    )
    repeated: list[str] = []
    parts = _parts(path, files, repeated) if entry.is_dir else [path]
    names = [part.rpartition("/")[2] for part in parts]
    compacted = [name for name in names if name.endswith(".compact")]
    return LogLines(parts, opener, missing=_gaps(parts), repeated=repeated, compacted=compacted)


def is_log_name(name: str) -> bool:
    """Return whether a file or folder of this name may be an event log."""
    return not name.startswith(_OTHER)


def _open_local(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb", buffering=0)
    except OSError as error:
        raise NotAllowed(
            "the event log cannot be read", where=path, found=error.strerror
        ) from None


def _parts(folder: str, files: Files, repeated: list[str]) -> list[str]:
    """Return the files with the lines, in order. Names of those that repeat another one
    are added to ``repeated``.
    """
    entries = files.list_dir(folder)
    rolled: dict[tuple[int, bool], Entry] = {}
    # Of two files with one number an empty one is no part.
    for entry in sorted(entries, key=lambda entry: (not entry.size, entry.name)):
        match = _ROLLED.fullmatch(entry.name)
        # A file that compaction did not finish repeats those that it was made from.
        if match is None or entry.is_dir or entry.name.endswith(".compact.inprogress"):
            continue
        key = (int(match["number"]), entry.name.endswith(".compact"))
        if rolled.setdefault(key, entry) is not entry:
            repeated.append(entry.name)
    if rolled:
        compacted = max((key for key in rolled if key[1]), default=(0, False))
        return [rolled[key].path for key in sorted(rolled) if key >= compacted]
    logs = [entry for entry in entries if is_log_name(entry.name)]
    if len(logs) == 1:
        return _parts(logs[0].path, files, repeated) if logs[0].is_dir else [logs[0].path]
    names = ", ".join(sorted(entry.name for entry in logs)[:_SHOWN])
    more = f" and {len(logs) - _SHOWN} more" if len(logs) > _SHOWN else ""
    if not logs:
        raise InputMissing("the folder has no event log", where=folder)
    raise UsageError(
        "the folder has several event logs",
        where=folder,
        found=names + more,
        next_step="name one of them",
    )


def _gaps(parts: list[str]) -> list[str]:
    """Return the numbers of a rolling folder that are missing between its parts, or
    before its first one.
    """
    matches = [match for part in parts if (match := _ROLLED.fullmatch(part.rpartition("/")[2]))]
    numbers = sorted({int(match["number"]) for match in matches})
    # What a compact file replaces is gone for good, and nothing is missing.
    first = numbers[0] if numbers and matches[0]["rest"].endswith(".compact") else 1
    ends = [first - 1, *numbers]
    gaps = [
        (before + 1, after - 1) for before, after in itertools.pairwise(ends) if after > before + 1
    ]
    return [
        f"parts {start} to {last} missing" if last > start else f"part {start} missing"
        for start, last in gaps
    ]


class _Counted(io.RawIOBase):
    """A stream whose bytes are counted as they are on disk."""

    def __init__(self, stream: IO[bytes], lines: LogLines) -> None:
        self._stream, self._lines = stream, lines

    def read(self, count: int = -1, /) -> bytes:
        data = self._stream.read(count)
        self._lines.disk_bytes += len(data)
        return data


class _Remote(io.RawIOBase):
    """A file of another file system, read piece by piece."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path, self._position = files, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._files.read_range(self._path, self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
