"""Log files, plain or packed, as chunks of whole lines.

The length of a line is limited, so that memory is bounded. A longer line is one
malformed record; its first bytes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple

from cmsspark.base.access import RAW_LIMIT, AccessBatch, Quarantined
from cmsspark.sources.formats import packings
from cmsspark.sources.formats.json_lines import JsonDecoder

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
    for chunk in chunks(packings.unpacked(stream, file), line_limit=line_limit):
        if line == 1:
            packings.check_text(take_head(chunk), file)
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
    return bytes((chunk.head if isinstance(chunk, LongLine) else chunk)[: packings.HEAD_BYTES])


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
