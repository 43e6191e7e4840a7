"""The intact part of damaged log files that ``--accept-damaged`` names.

Records before the damage are counted as in any file. If a packed file is cut within a
line, the half line is not a record (unless it is a whole object without its newline).
Blocks of an Avro file count completely or not at all.

A gzip member has one checksum, at its end. All output of the damaged member is
therefore unverified: a flipped bit may have changed any of its lines before the
decompressor detected an error. These lines are counted, and ``unverified`` is their
number of records. Of a damaged file in another packing all records are unverified.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import msgspec

from cmsspark.base.access import AccessBatch
from cmsspark.sources.formats import avro, lines, strict_json
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.formats.unpacking import Unpacked, UnreadableStream
from cmsspark.sources.record_schema import Note
from cmsspark.sources.values import Malformed

_STEP: Final = 64 * 1024
#: Bytes that are taken at once from a decompressor that loses them where it fails.
_SMALL_STEP: Final = 256
_GZIP: Final = b"\x1f\x8b"


class Damage(msgspec.Struct):
    """What is wrong with a file: ``reason`` is None while nothing is. ``left_out``:
    bytes of a half line.

    ``records``: all that were read. ``unverified``: those among them that no checksum covers.
    """

    file: str
    reason: str | None = None
    left_out: int = 0
    records: int = 0
    unverified: int = 0

    def notes(self) -> Iterator[Note]:
        """Yield the damage, for the manifest."""
        if self.reason is not None:
            details = {
                "file": self.file,
                "reason": self.reason,
                "left_out_bytes": self.left_out,
                "unverified_records": self.unverified,
            }
            yield "damaged", "damaged", self.records, json.dumps(details)


class Intact:
    """A log file's text up to its damage; ``readinto`` as of a file, at its own pace."""

    def __init__(self, stream: IO[bytes], damage: Damage) -> None:
        self._stream = stream
        self._damage = damage
        head = lines.first_bytes(stream)
        self._member: Any = zlib.decompressobj(31) if head[:2] == _GZIP else None
        self._is_gzip = self._member is not None
        self._begun = False
        self.at_end = False
        self._unread = memoryview(b"")
        #: Bytes of text so far, and those of members whose checksum was right.
        self._text_bytes = 0
        self.verified = 0
        #: All of it has been handed on.
        self.is_spent = False
        self.ends_line = True
        open_part = None if self._is_gzip else lines.unpacker(head)
        self._unpacked = None if open_part is None else Unpacked(stream, open_part)
        if observed := lines.not_as_named(damage.file, head):
            name, content = observed
            damage.reason = f"no {name} file, though its name says so: {content}"
            # Text under a wrong name is intact; anything else is not for us to guess.
            self.at_end = self._unpacked is None and not head.removeprefix(lines.BOM).startswith(
                b"{"
            )

    def readinto(self, room: memoryview) -> int:
        """Fill ``room`` with the next bytes and say how many; 0 at the end or at the damage."""
        self._unread = self._unread or memoryview(self._next())
        count = min(len(room), len(self._unread))
        room[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count

    def _next(self) -> bytes:
        while not self.at_end:
            if self._unpacked is not None:
                content = self._unpacked_step()
                if content:
                    self.ends_line = content.endswith(b"\n")
                    return content
                continue
            piece = self._stream.read(_STEP)
            if not piece:
                self._end("cut short" if self._begun else None)
                break
            content = self._inflated(piece) if self._is_gzip else piece
            self._text_bytes += len(content)
            if content:
                self.ends_line = content.endswith(b"\n")
                return content
        self.is_spent = True
        return b""

    def _unpacked_step(self) -> bytes:
        """Return the next bytes of a file that is packed in another way than gzip; at
        its damage what came before.
        """
        assert self._unpacked is not None
        content = bytearray()
        while len(content) < _STEP and not self.at_end:
            try:
                piece = self._unpacked.read(_SMALL_STEP)
            except UnreadableStream as fault:
                self._end(str(fault))
                break
            if not piece:
                self._end(None)
            content += piece
        return bytes(content)

    def _end(self, reason: str | None) -> None:
        self.at_end = True
        self._damage.reason = self._damage.reason or reason

    def _inflated(self, piece: bytes) -> bytes:
        content = b""
        while piece and not self.at_end:
            if not self._begun:
                piece = piece.lstrip(b"\0")  # padding behind a member
                if not piece:
                    break
                self._member, self._begun = zlib.decompressobj(31), True
            before = self._member.copy()
            try:
                content += self._member.decompress(piece)
            except zlib.error as error:
                self._end(" ".join(str(error).split()))
                # What comes out of the member before its damage.
                salvaged = bytearray()
                try:
                    for at in range(len(piece)):
                        salvaged += before.decompress(piece[at : at + 1])
                except zlib.error:
                    pass
                return content + bytes(salvaged)
            piece = self._member.unused_data
            self._begun = not self._member.eof
            if not self._begun:
                self.verified = self._text_bytes + len(content)
        return content


def read_lines(
    decoder: JsonDecoder,
    stream: IO[bytes],
    damage: Damage,
    on_first_lines: lines.OnFirstLines,
    line_limit: int = lines.LINE_LIMIT,
) -> Iterator[AccessBatch]:
    """Yield batches of the accesses before the damage, which is recorded in ``damage``."""
    source = Intact(stream, damage)
    line, begin = 1, 0
    # Of lines that end in members whose checksum was right.
    verified_records = 0
    chunks = lines.chunks(source, line_limit=line_limit)
    for chunk in chunks:
        if line == 1 and (name := lines.name_packing(lines.take_head(chunk))):
            damage.reason = f"{name} data"
            damage.left_out = lines.count_bytes(chunk) + sum(map(lines.count_bytes, chunks))
            return
        is_half = source.is_spent and damage.reason and not source.ends_line
        batch, cut = AccessBatch(), 0
        if isinstance(chunk, lines.LongLine):
            if is_half:
                damage.left_out = chunk.size
                break
            line += chunk.add_to(batch, damage.file, line)
            size = chunk.size + 1
            verified_records = (
                damage.records + batch.read
                if source.verified >= begin + size
                else verified_records
            )
        else:
            if line == 1:
                on_first_lines(bytes(chunk))
            batch.content_bytes += len(chunk)
            if is_half and not _is_object(bytes(chunk)):
                damage.left_out = len(chunk) - 1
                break
            if source.verified >= begin:
                cut = bytes(chunk[: source.verified - begin]).rfind(b"\n") + 1
                line += decoder.add(chunk[:cut], damage.file, line, batch) if cut else 0
                verified_records = damage.records + batch.read
            line += decoder.add(chunk[cut:], damage.file, line, batch) if cut < len(chunk) else 0
            size = len(chunk)
        damage.records += batch.read
        begin += size
        yield batch
    if source.verified >= begin:
        verified_records = damage.records
    damage.unverified = damage.records - verified_records


def _is_object(line: bytes) -> bool:
    try:
        strict_json.parse_object(line.strip())
    except Malformed:
        return False
    return True


def read_avro(
    decoder: Any, content: bytes, damage: Damage, on_schema: Callable[[Any, int], None]
) -> Iterator[AccessBatch]:
    """Batches of the accesses in the blocks before the damage. Raises DataError (65)
    for a file of another schema.
    """

    def record(reason: str) -> None:
        damage.reason = reason

    for batch in avro.decode(decoder, content, damage.file, on_schema=on_schema, damaged=record):
        damage.records += batch.read
        yield batch
