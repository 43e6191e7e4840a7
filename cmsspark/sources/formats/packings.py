"""The packings of log files, told by their first bytes: those that are read, and those
that are refused by name.
"""

from __future__ import annotations

import re
from typing import IO, Any, Final

from cmsspark.base.errors import DataError
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
    None where it may be text.
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


def _with_article(packing: str) -> str:
    """Return the name of a packing that is read behind its article: an xz, a gzip."""
    return f"{'an' if packing in ('xz', 'lz4') else 'a'} {packing}"


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
            raise DataError(
                f"{_with_article(self._packing)} {fault.fault}",
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

    Raises DataError (65) where the name of the file promises a packing that its first
    bytes are not of. ``next_step`` is for damage.
    """
    head = first_bytes(stream)
    if mismatch := not_as_named(file, head):
        name, observed = mismatch
        step = "fetch the file again from its source, or name it for what it is"
        if hadoop_name := _name_hadoop_blocks(head):
            observed, step = f"{hadoop_name} data", name_step(hadoop_name)
        raise DataError(
            f"{_with_article(name)} file is expected, as its name says",
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
            f"{expected}, plain or packed once, is expected",
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
