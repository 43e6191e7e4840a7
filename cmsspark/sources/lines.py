"""Log files as chunks of whole lines: plain or gzip, read as they are, damage named."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from cmsspark.access import AccessBatch
from cmsspark.errors import DataError
from cmsspark.sources.decoder import JsonDecoder

#: Bytes read at once: large enough for the decoder's and numpy's fixed costs, small enough for the caches.
CHUNK = 8 * 1024 * 1024

#: Is shown the first lines of each file.
Look = Callable[[bytes], None]

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


def decode_file(
    decoder: JsonDecoder, stream: IO[bytes], file: str, look: Look = lambda chunk: None
) -> Iterator[AccessBatch]:
    """Batches of the accesses in a file of JSON lines. Raises DataError (65) naming a file that is damaged."""
    line = 1
    for chunk in chunks(plain(stream, file), file):
        if line == 1:
            look(chunk)
        yield decoder.decode(chunk, file, line)
        line += chunk.count(b"\n")


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


def chunks(stream: Any, file: str, size: int = CHUNK) -> Iterator[bytes]:
    """Pieces of about ``size`` bytes that end at a newline; the last line gets one where it has none.

    A BOM at the file's start is skipped. Raises DataError (65) where decompression fails.
    """
    carried: list[bytes] = []
    first = True
    while True:
        piece = _read(stream, file, size)
        if first:
            piece, first = _without_mark(piece, stream, file), False
            if not piece:
                continue
        if not piece:
            break
        cut = piece.rfind(b"\n") + 1
        if not cut:
            carried.append(piece)
            continue
        yield b"".join((*carried, memoryview(piece)[:cut])) if carried or cut < len(piece) else piece
        carried = [piece[cut:]] if cut < len(piece) else []
    rest = b"".join(carried)
    if rest:
        yield rest + b"\n"


def _without_mark(piece: bytes, stream: Any, file: str) -> bytes:
    """A file's first piece without the BOM, which a short read may have cut in two."""
    while 0 < len(piece) < len(_BOM) and _BOM.startswith(piece):
        more = _read(stream, file, len(_BOM) - len(piece))
        if not more:
            break
        piece += more
    return piece.removeprefix(_BOM)


def _read(stream: Any, file: str, size: int) -> bytes:
    from isal import isal_zlib

    try:
        return bytes(stream.read(size))
    except (EOFError, OSError, zlib.error, isal_zlib.error) as error:  # type: ignore[misc]  # isal has no types
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            "a gzip file is damaged",
            where=file,
            found=" ".join(str(error).split()) or type(error).__name__,
            next_step="fetch the file again from its source; --accept-damaged reads what is intact",
        ) from None
