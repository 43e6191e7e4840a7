"""The packings of log files, told by their first bytes: those that are read, and those
that are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import IO, Any, Final

from cmsspark.base.errors import DataError

#: First bytes of a text that are looked at.
HEAD_BYTES: Final = 512
#: The next step where a packed file is damaged, and where a file cannot be read at all.
AGAIN: Final = "fetch the file again from its source; --accept-damaged reads what is intact"
LEAVE_OUT: Final = "--accept-damaged leaves it out and marks the result partial"


class _KeptOpen:
    """A stream that Arrow does not close when it drops its own."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.read = stream.read

    def close(self) -> None:
        """Do nothing: the caller closes the stream."""


def _gzip(stream: IO[bytes]) -> Any:
    from isal import igzip

    return igzip.IGzipFile(fileobj=stream, mode="rb")  # type: ignore[no-untyped-call]


def _arrow(codec: str) -> Callable[[IO[bytes]], Any]:
    def unpack(stream: IO[bytes]) -> Any:
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(_KeptOpen(stream), mode="r"), codec)

    return unpack


def _xz(stream: IO[bytes]) -> Any:
    import lzma

    return lzma.LZMAFile(stream)


#: What is read: the name, the ending of a file's name that says so, the first bytes,
#: and what unpacks a stream.
_READ: Final = (
    ("gzip", ".gz", re.compile(rb"\x1f\x8b"), _gzip),
    (
        "zstd",
        ".zst",
        re.compile(rb"[\x22-\x28]\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        _arrow("zstd"),
    ),
    ("bzip2", ".bz2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), _arrow("bz2")),
    ("xz", ".xz", re.compile(rb"\xfd7zXZ\0"), _xz),
    ("lz4", ".lz4", re.compile(rb"\x04\x22\x4d\x18"), _arrow("lz4")),
)
#: What is no text and not read where a log of text is expected.
_REFUSED: Final = (
    ("zip", re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)")),
    ("7z", re.compile(rb"7z\xbc\xaf\x27\x1c")),
    ("RAR", re.compile(rb"Rar!\x1a\x07")),
    ("compress", re.compile(rb"\x1f[\x9d\xa0]")),
    ("lzip", re.compile(rb"LZIP")),
    ("lzop", re.compile(rb"\x89LZO\0")),
    ("snappy", re.compile(rb"\xff\x06\0\0sNaPpY")),
    ("Parquet", re.compile(rb"PAR[1E]")),
    ("Avro", re.compile(rb"Obj\x01")),
    ("ORC", re.compile(rb"ORC")),
    ("Arrow", re.compile(rb"ARROW1")),
    ("Hadoop SequenceFile", re.compile(rb"SEQ[\x04-\x06]")),
    ("SQLite", re.compile(rb"SQLite format 3\0")),
    ("tar", re.compile(rb"(?s).{257}ustar(?:\0|  \0)")),
    ("UTF-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff")),
    ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff|[\[{]\0|\0[\[{]")),
)
_MAGICS: Final = (*((name, magic) for name, _, magic, _ in _READ), *_REFUSED)
#: Bytes that no text has: a line that only begins as a packing does is a malformed line.
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]|\A[\xfd-\xff]")
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
    return next((name for name, magic in _MAGICS if magic.match(head)), None)


def first_bytes(stream: IO[bytes]) -> bytes:
    """Return enough of a stream's start to tell how it is packed, and go back there."""
    head = stream.read(10)
    stream.seek(0)
    return head


def unpacker(head: bytes) -> Callable[[IO[bytes]], Any] | None:
    """Return what unpacks a file with these first bytes; None for one that is not
    packed in a way that is read.
    """
    return next((unpack for _, _, magic, unpack in _READ if magic.match(head)), None)


def unpacked(stream: IO[bytes], file: str) -> Any:
    """Return a stream of the file's text; the stream itself for a plain file.

    Raises DataError (65) where the name of the file promises a packing that its first
    bytes are not of.
    """
    head = first_bytes(stream)
    if mismatch := not_as_named(file, head):
        name, observed = mismatch
        raise DataError(
            f"a {name} file is expected, as its name says",
            where=file,
            found=observed,
            next_step="fetch the file again from its source, or name it for what it is",
        )
    unpack = unpacker(head)
    return stream if unpack is None else unpack(stream)


def name_stream_packing(stream: Any) -> str:
    """Return the packing of what :func:`unpacked` returns, as far as its type tells."""
    return {"IGzipFile": "gzip", "LZMAFile": "xz"}.get(type(stream).__name__, "packed")


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


def check_text(head: bytes, file: str) -> None:
    """Raise DataError (65), which names the packing, where a text begins as no text does."""
    if (name := name_packing(head)) is not None:
        raise DataError(
            "a log file of JSON lines, plain or packed once, is expected",
            where=file,
            found=f"{name} data",
            next_step=f"unpack the file, or write it as JSON lines; {LEAVE_OUT}",
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
