"""Log files as chunks of whole lines: plain or gzip, read as they are, damage named."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

from cmsspark.access import AccessBatch
from cmsspark.errors import DataError
from cmsspark.sources.decoder import JsonDecoder

#: Bytes read at once: they and the records made of them fit a core's cache, which is worth a third of the time.
CHUNK: Final = 512 * 1024
#: Bytes read at first, enough for a sample of the fields: a small file's time would go into a larger buffer.
_FIRST: Final = 256 * 1024
#: Records handed on at once, or a chunk's more: numpy's fixed costs are shared by so many.
GATHERED: Final = 4096

#: Is shown the first lines of each file.
Look = Callable[[bytes], None]

BOM: Final = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_NEWLINE = ord("\n")


def decode_file(
    decoder: JsonDecoder, stream: IO[bytes], file: str, look: Look = lambda chunk: None
) -> Iterator[AccessBatch]:
    """Batches of the accesses in a file of JSON lines. Raises DataError (65) naming a file that is damaged."""
    line, batch = 1, AccessBatch()
    for chunk in chunks(plain(stream, file), file):
        if line == 1:
            look(bytes(chunk))
        line += decoder.add(chunk, file, line, batch)
        if batch.read >= GATHERED:
            yield batch
            batch = AccessBatch()
    if line > 1:
        yield batch


def plain(stream: IO[bytes], file: str) -> Any:
    """The stream, decompressed where its first bytes say gzip. A file named .gz that is none is damaged."""
    head = stream.read(2)
    stream.seek(0)
    if head == _GZIP:
        from isal import igzip

        return igzip.IGzipFile(fileobj=stream, mode="rb")  # type: ignore[no-untyped-call]
    if file.endswith(".gz") and head:
        raise DataError("a gzip file is wanted, as its name says", where=file, found=f"first bytes {head.hex()}")
    return stream


def chunks(stream: Any, file: str, size: int = CHUNK) -> Iterator[memoryview]:
    """Pieces of about ``size`` bytes that end at a newline; the last line gets one where it has none.

    All are views of one buffer: each is gone with the next. A BOM at the file's start is skipped. Raises DataError (65)
    where decompression fails.
    """
    buffer = bytearray(min(size, _FIRST) + len(BOM) + 1)
    begin, end = _after_mark(stream, buffer, file)
    filled = False
    while True:
        # What is left of the last line goes to the front, and the next bytes behind it.
        if begin:
            buffer[: end - begin] = buffer[begin:end]
            begin, end = 0, end - begin
        if filled and len(buffer) - 1 - end < max(1, size // 2):
            buffer = buffer[:end] + bytes(min(size, 4 * len(buffer)) + 1)
        whole = memoryview(buffer)
        room = whole[end : min(end + size, len(buffer) - 1)]
        got = _read(stream, room, file)
        filled = got == len(room)
        if not got:
            break
        begin = buffer.rfind(b"\n", 0, end + got) + 1
        end += got
        if begin:
            yield whole[:begin]
    if end:
        # The few bytes that were read for the mark may end in a newline.
        closed = buffer[end - 1] == _NEWLINE
        buffer[end] = _NEWLINE
        yield whole[: end if closed else end + 1]


def pieces(content: bytes, size: int = CHUNK) -> Iterator[memoryview]:
    """Whole lines that are read already, in pieces of about ``size`` bytes."""
    whole, begin = memoryview(content), 0
    while begin < len(content):
        end = content.find(b"\n", begin + size) + 1 or len(content)
        yield whole[begin:end]
        begin = end


def _after_mark(stream: Any, buffer: bytearray, file: str) -> tuple[int, int]:
    """Where a file's first bytes lie in the buffer: behind the BOM, which short reads may have cut."""
    end = 0
    while end < len(BOM) and BOM.startswith(buffer[:end]):
        got = _read(stream, memoryview(buffer)[end : len(BOM)], file)
        if not got:
            break
        end += got
    return (end if buffer[:end] == BOM else 0), end


def _read(stream: Any, into: memoryview, file: str) -> int:
    from isal import isal_zlib

    try:
        return int(stream.readinto(into))
    except (EOFError, OSError, zlib.error, isal_zlib.error) as error:  # type: ignore[misc]  # isal has no types
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            "a gzip file is damaged",
            where=file,
            found=" ".join(str(error).split()) or type(error).__name__,
            next_step="fetch the file again from its source; --accept-damaged reads what is intact",
        ) from None
