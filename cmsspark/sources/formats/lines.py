"""Log files, plain or packed, as chunks of whole lines.

The length of a line is limited, so that memory is bounded. A longer line is one
malformed record; its first bytes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple

from cmsspark.base.access import RAW_LIMIT, AccessBatch, Quarantined
from cmsspark.base.errors import DataError
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.formats.unpacking import (
    OpenPart,
    Unpacked,
    UnreadableStream,
    open_bzip2,
    open_frame,
    open_gzip,
    open_snappy,
    open_xz,
)

# The packings of log files, told by their first bytes: those that are read, and those
# that are refused by name.

#: First bytes of a text that are looked at.
HEAD_BYTES: Final = 512
#: The next step where a packed file is damaged, and where a file cannot be read at all.
AGAIN: Final = "fetch the file again from its source; --accept-damaged reads what is intact"
LEAVE_OUT: Final = "--accept-damaged leaves it out and marks the result partial"
#: What a log should be, and the next step where it is something else.
LOG_TEXT: Final = "a log file of JSON lines"
LOG_STEP: Final = f"or write it as JSON lines; {LEAVE_OUT}"

#: What is read: the name, the ending of a file's name that says so, the first bytes,
#: and what unpacks a stream.
_READ: Final = (
    ("gzip", ".gz", re.compile(rb"\x1f\x8b"), open_gzip),
    (
        "zstd",
        ".zst",
        re.compile(rb"[\x22-\x28]\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        open_frame,
    ),
    ("bzip2", ".bz2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), open_bzip2),
    ("xz", ".xz", re.compile(rb"\xfd7zXZ\0"), open_xz),
    ("lz4", ".lz4", re.compile(rb"\x04\x22\x4d\x18|[\x50-\x5f]\x2a\x4d\x18"), open_frame),
    ("snappy", ".sz", re.compile(rb"\xff\x06\0\0sNaPpY"), open_snappy),
)
#: What is no text and not read where a log of text is expected.
_REFUSED: Final = (
    ("zip", re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)")),
    ("7z", re.compile(rb"7z\xbc\xaf\x27\x1c")),
    ("RAR", re.compile(rb"Rar!\x1a\x07")),
    ("compress", re.compile(rb"\x1f[\x9d\xa0]")),
    ("lzip", re.compile(rb"LZIP")),
    ("lzop", re.compile(rb"\x89LZO\0")),
    ("Parquet", re.compile(rb"PAR[1E]")),
    ("Avro", re.compile(rb"Obj\x01")),
    ("ORC", re.compile(rb"ORC")),
    ("Arrow", re.compile(rb"ARROW1")),
    ("Hadoop SequenceFile", re.compile(rb"SEQ[\x04-\x06]")),
    ("zlib (Hadoop's deflate)", re.compile(rb"\x78[\x01\x5e\x9c\xda]")),
    ("LZMA", re.compile(rb"\x5d\0\0")),
    ("lz4 of the legacy kind", re.compile(rb"\x02\x21\x4c\x18")),
    ("SQLite", re.compile(rb"SQLite format 3\0")),
    ("tar", re.compile(rb"(?s).{257}ustar(?:\0|  \0)")),
    ("UTF-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff")),
    ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff|[\[{]\0|\0[\[{]")),
)
_MAGICS: Final = (*((name, magic) for name, _, magic, _ in _READ), *_REFUSED)
#: Bytes that no text has: a line that only begins as a packing does is a malformed line.
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]|\A[\xfd-\xff]|\Ax[\x9c\xda]")
#: Bytes in a block of Hadoop's codecs, at most, before it is packed.
_HADOOP_BLOCK: Final = 16 * 1024 * 1024
#: Names of what Hadoop's own program unpacks.
_HADOOP: Final = "hdfs dfs -text FILE writes what is in it as plain text"
#: Endings of names of packed files, also of those that only Hadoop unpacks.
_ENDINGS: Final = (*(ending for _, ending, _, _ in _READ), ".zstd", ".deflate", ".snappy", ".lzo")


def is_packed_name(path: str) -> bool:
    """Return whether the ending of a file's name says that it is packed."""
    return path.endswith(_ENDINGS)


def name_packing(head: bytes) -> str | None:
    """Return the name of the packing or binary format that begins with these bytes;
    None if it may be text.
    """
    if not _NO_TEXT.search(head):
        return None
    name = next((name for name, magic in _MAGICS if magic.match(head)), None)
    return name or _name_hadoop_blocks(head)


def _name_hadoop_blocks(head: bytes) -> str | None:
    """Return which of Hadoop's codecs wrote blocks that begin with these bytes, as far
    as they tell: the plain size, the packed size, and the packed block.

    A block of snappy begins with its plain size once more, seven bits a byte.
    """
    if len(head) < 10:
        return None
    plain, packed = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    if not 0 < plain <= _HADOOP_BLOCK or not 0 < packed <= plain + plain // 6 + 64:
        return None
    size = shift = 0
    for byte in head[8:12]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (
        "Hadoop's snappy"
        if 0 < size <= plain and packed <= size + size // 6 + 64
        else "Hadoop's lz4"
    )


def name_step(name: str) -> str:
    """Return how to make a file readable that is packed in this way."""
    return _HADOOP if "Hadoop" in name else f"unpack or convert the file, which is {name}"


def first_bytes(stream: IO[bytes]) -> bytes:
    """Return enough of a stream's start to tell how it is packed, and go back there."""
    head = stream.read(10)
    stream.seek(0)
    return head


def unpacker(head: bytes) -> OpenPart | None:
    """Return what opens the streams of a file with these first bytes; None for one that
    is not packed in a way that is read.
    """
    return next((open_part for _, _, magic, open_part in _READ if magic.match(head)), None)


class UnpackedFile:
    """The text of a packed file. Reading raises DataError (65) with the file, the
    packing, and the byte where it is damaged.
    """

    def __init__(self, stream: Unpacked, packing: str, file: str, next_step: str) -> None:
        self._stream = stream
        self._packing = packing
        self._file = file
        self._next_step = next_step

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end."""
        try:
            return self._stream.read(size)
        except UnreadableStream as fault:
            article = "an" if self._packing in ("xz", "lz4") else "a"
            raise DataError(
                f"{article} {self._packing} {fault.fault}",
                where=self._file,
                found=str(fault),
                next_step=fault.next_step or self._next_step,
            ) from None

    def readinto(self, room: memoryview) -> int:
        """Fill ``room`` as far as one read goes, and return the number of bytes."""
        piece = self.read(len(room))
        room[: len(piece)] = piece
        return len(piece)


def unpacked(stream: IO[bytes], file: str, next_step: str = AGAIN) -> Any:
    """Return a stream of the file's text; the stream itself for a plain file.

    Raises DataError (65) if the name of the file promises a packing that its first
    bytes are not of. ``next_step`` is for damage.
    """
    head = first_bytes(stream)
    if mismatch := not_as_named(file, head):
        name, observed = mismatch
        step = "fetch the file again from its source, or name it for what it is"
        if hadoop_name := _name_hadoop_blocks(head):
            observed, step = f"{hadoop_name} data", name_step(hadoop_name)
        raise DataError(
            f"the file is not {name}, as its name says",
            where=file,
            found=observed,
            next_step=step,
        )
    for name, _, magic, open_part in _READ:
        if magic.match(head):
            return UnpackedFile(Unpacked(stream, open_part), name, file, next_step)
    return stream


def not_as_named(file: str, head: bytes) -> tuple[str, str] | None:
    """Return the packing that a file's name promises, and what its first bytes are,
    where these differ.
    """
    for name, ending, magic, _ in _READ:
        if head and file.endswith(ending) and not magic.match(head):
            return name, f"{actual} data" if (
                actual := name_packing(head)
            ) else f"first bytes {head[:4].hex()}"
    return None


def check_text(
    head: bytes, file: str, expected: str = LOG_TEXT, otherwise: str = LOG_STEP
) -> None:
    """Raise DataError (65), which names the packing, where a text begins as no text does.

    ``expected`` is what the file should be, ``otherwise`` the next step beside
    unpacking it.
    """
    if (name := name_packing(head)) is not None:
        raise DataError(
            f"the file is not {expected}, plain or packed once",
            where=file,
            found=f"{name} data",
            next_step=f"{name_step(name)}; {otherwise}",
        )


def describe(head: bytes) -> str:
    """Describe what a malformed first line looks like."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if name := name_packing(head):
        return f"{name} data"
    if b"\0" in head:
        return "binary data, or text that is not UTF-8"
    if start.startswith(b"["):
        return "a JSON array"
    if start.startswith(b"<"):
        return "a page of HTML or XML"
    if re.search(rb"\}\s*\r\s*\{", head):
        return "lines that end in \\r alone"
    if re.search(rb"\}[ \t]*,?[ \t]*\{\"", head):
        return "objects without a newline between them"
    if start.rstrip() == b"{":
        return "an object over several lines"
    return "an object of another form" if start.startswith(b"{") else "text that is not JSON"


#: Bytes read at once. They and their records fit a core's cache, which saves a third of the time.
CHUNK: Final = 512 * 1024
#: Bytes read first, enough for a sample of the fields. Allocating more would dominate
#: the time of a small file.
_FIRST: Final = 256 * 1024
#: Minimum records of a batch, to spread numpy's fixed costs.
GATHERED: Final = 4096

#: Maximum bytes of a line without its newline, unless the settings have another limit
#: (``max_line_bytes``).
LINE_LIMIT: Final = 64 * 1024 * 1024

#: Called with the first lines of each file.
OnFirstLines = Callable[[bytes], None]

BOM: Final = b"\xef\xbb\xbf"
_NEWLINE = ord("\n")


class LongLine(NamedTuple):
    """A line above the limit: its first bytes, and its size without the newline."""

    head: bytes
    size: int
    limit: int

    def add_to(self, batch: AccessBatch, file: str, line: int) -> int:
        """Add the line as a malformed record and return the number of lines."""
        batch.read += 1
        batch.content_bytes += self.size + 1
        reason = f"a line of more than {self.limit} bytes"
        batch.malformed.append(Quarantined.cut(file, line, reason, self.head, self.size))
        return 1


def decode_file(
    decoder: JsonDecoder,
    stream: IO[bytes],
    file: str,
    on_first_lines: OnFirstLines = lambda chunk: None,
    line_limit: int = LINE_LIMIT,
) -> Iterator[AccessBatch]:
    """Yield batches of the accesses in a file of JSON lines. Raises DataError (65) with
    the name of a damaged file.
    """
    line, batch = 1, AccessBatch()
    for chunk in chunks(unpacked(stream, file), line_limit=line_limit):
        if line == 1:
            check_text(take_head(chunk), file)
        if isinstance(chunk, LongLine):
            line += chunk.add_to(batch, file, line)
            continue
        if line == 1:
            on_first_lines(bytes(chunk))
        batch.content_bytes += len(chunk)
        line += decoder.add(chunk, file, line, batch)
        if batch.read >= GATHERED:
            yield batch
            batch = AccessBatch()
    if line > 1:
        yield batch


def count_bytes(chunk: memoryview | LongLine) -> int:
    """Return the bytes of a chunk."""
    return chunk.size + 1 if isinstance(chunk, LongLine) else len(chunk)


def take_head(chunk: memoryview | LongLine) -> bytes:
    """Return the first bytes of a chunk."""
    return bytes((chunk.head if isinstance(chunk, LongLine) else chunk)[:HEAD_BYTES])


def chunks(
    stream: Any, size: int = CHUNK, line_limit: int = LINE_LIMIT
) -> Iterator[memoryview | LongLine]:
    """Pieces of about ``size`` bytes that end at a newline; the last line gets one
    where it has none.

    All are views of one buffer: each is invalid once the next is read. A BOM at the
    file's start is skipped. Lines of more than ``line_limit`` bytes (at least ``size``)
    come as LongLine.
    """
    # The bytes read for the BOM come beside the first piece: of both only the first
    # line may exceed the limit.
    size = min(size, line_limit - len(BOM))
    buffer = bytearray(min(size, _FIRST) + len(BOM) + 1)
    begin, end = _after_mark(stream, buffer)
    filled = False
    while True:
        # Move the rest of the last line to the front; the next bytes follow it.
        if begin:
            buffer[: end - begin] = buffer[begin:end]
            begin, end = 0, end - begin
        if end > line_limit:
            long, begin, end = _past_line(stream, buffer, end, size, line_limit)
            yield long
            whole_lines = buffer.rfind(b"\n", begin, end) + 1
            if whole_lines:
                yield memoryview(buffer)[begin:whole_lines]
                begin = whole_lines
            continue
        if filled and len(buffer) - 1 - end < max(1, size // 2):
            # Double the buffer, so that a long line is copied a few times only.
            more = min(max(end, min(size, 4 * len(buffer))), line_limit + size - end)
            wider = bytearray(end + more + 1)
            wider[:end] = memoryview(buffer)[:end]
            buffer = wider
        view = memoryview(buffer)
        room = view[end : min(end + size, len(buffer) - 1)]
        got = int(stream.readinto(room))
        filled = got == len(room)
        if not got:
            break
        # Before the new bytes only those read for the BOM may contain a newline.
        unsearched, end = max(0, end - len(BOM)), end + got
        begin = buffer.rfind(b"\n", unsearched, end) + 1
        first = 0
        if begin > line_limit and (newline := buffer.find(b"\n", unsearched)) > line_limit:
            yield LongLine(bytes(view[: min(newline, RAW_LIMIT)]), newline, line_limit)
            first = newline + 1
        if begin > first:
            yield view[first:begin]
    if end:
        # The bytes read for the BOM may end in a newline.
        closed = buffer[end - 1] == _NEWLINE
        buffer[end] = _NEWLINE
        yield view[: end if closed else end + 1]


def _past_line(
    stream: Any, buffer: bytearray, end: int, size: int, limit: int
) -> tuple[LongLine, int, int]:
    """Read to the end of the line whose first ``end`` bytes are in the buffer; return
    it and what follows.
    """
    head, room = bytes(memoryview(buffer)[: min(end, RAW_LIMIT)]), memoryview(buffer)[:size]
    while got := int(stream.readinto(room)):
        newline = buffer.find(b"\n", 0, got)
        if newline >= 0:
            return LongLine(head, end + newline, limit), newline + 1, got
        end += got
    return LongLine(head, end, limit), 0, 0


def pieces(
    content: bytes, size: int = CHUNK, line_limit: int = LINE_LIMIT
) -> Iterator[memoryview | LongLine]:
    """Split whole lines in memory into pieces of about ``size`` bytes; see :func:`chunks`."""
    view, begin = memoryview(content), 0
    while begin < len(content):
        end = content.find(b"\n", begin + size) + 1 or len(content)
        if end - begin > line_limit:
            # Only the last line of a piece may be longer than the piece should be.
            last = content.rfind(b"\n", begin, end - 1) + 1 or begin
            length = end - last - content.endswith(b"\n", last, end)
            if length > line_limit:
                if last > begin:
                    yield view[begin:last]
                yield LongLine(
                    bytes(view[last : last + min(length, RAW_LIMIT)]), length, line_limit
                )
                begin = end
                continue
        yield view[begin:end]
        begin = end


def _after_mark(stream: Any, buffer: bytearray) -> tuple[int, int]:
    """Return the span of a file's first bytes in the buffer after the BOM. Short reads
    may split the BOM.
    """
    end = 0
    while end < len(BOM) and BOM.startswith(buffer[:end]):
        got = int(stream.readinto(memoryview(buffer)[end : len(BOM)]))
        if not got:
            break
        end += got
    return (end if buffer[:end] == BOM else 0), end
