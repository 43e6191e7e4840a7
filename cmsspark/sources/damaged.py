"""Damaged log files, read as far as they are intact: for those that ``--accept-damaged`` names.

What lies before the damage is counted as in any file. Of a gzip file cut within a line, the half line is no record
(unless it is a whole object that lacks its newline only); of an Avro file, blocks count whole or not at all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from cmsspark.access import AccessBatch
from cmsspark.sources import avro, lines, strict_json
from cmsspark.sources.decoder import JsonDecoder
from cmsspark.sources.sample import Note
from cmsspark.sources.values import Malformed

_STEP: Final = 64 * 1024
_GZIP: Final = b"\x1f\x8b"


@dataclass
class Damage:
    """What is wrong with a file: ``reason`` is None while nothing is; ``left_out``: bytes of a half line."""

    file: str
    reason: str | None = None
    left_out: int = 0
    records: int = 0

    def notes(self) -> Iterator[Note]:
        """The damage, for the manifest."""
        if self.reason is not None:
            told = {"file": self.file, "reason": self.reason, "left_out_bytes": self.left_out}
            yield "damaged", "damaged", self.records, json.dumps(told)


class Intact:
    """A log file's text up to its damage; ``readinto`` as of a file, at its own pace."""

    def __init__(self, stream: IO[bytes], damage: Damage) -> None:
        self._stream = stream
        self._damage = damage
        head = stream.read(4)
        stream.seek(0)
        self._member: Any = zlib.decompressobj(31) if head[:2] == _GZIP else None
        self._is_gzip = self._member is not None
        self._begun = False
        self.at_end = False
        self._held = b""
        #: All of it has been handed on.
        self.is_spent = False
        self.ends_line = True
        if not self._is_gzip and head and damage.file.endswith(".gz"):
            damage.reason = f"no gzip file, though its name says so: its first bytes are {head[:2].hex()}"
            # Text under a wrong name is intact; anything else is not for us to guess.
            self.at_end = not head.removeprefix(b"\xef\xbb\xbf").startswith(b"{")

    def readinto(self, room: memoryview) -> int:
        """Fill ``room`` with the next bytes and say how many; 0 at the end or at the damage."""
        self._held = self._held or self._next()
        count = min(len(room), len(self._held))
        room[:count] = self._held[:count]
        self._held = self._held[count:]
        return count

    def _next(self) -> bytes:
        while not self.at_end:
            piece = self._stream.read(_STEP)
            if not piece:
                self._end("cut short" if self._begun else None)
                break
            found = self._inflated(piece) if self._is_gzip else piece
            if found:
                self.ends_line = found.endswith(b"\n")
                return found
        self.is_spent = True
        return b""

    def _end(self, reason: str | None) -> None:
        self.at_end = True
        self._damage.reason = self._damage.reason or reason

    def _inflated(self, piece: bytes) -> bytes:
        found = b""
        while piece and not self.at_end:
            if not self._begun:
                piece = piece.lstrip(b"\0")  # padding behind a member
                if not piece:
                    break
                self._member, self._begun = zlib.decompressobj(31), True
            before = self._member.copy()
            try:
                found += self._member.decompress(piece)
            except zlib.error as error:
                self._end(" ".join(str(error).split()))
                return found + _bytewise(before, piece)
            piece = self._member.unused_data
            self._begun = not self._member.eof
        return found


def _bytewise(member: Any, piece: bytes) -> bytes:
    """What comes out of a member before its damage."""
    found = bytearray()
    try:
        for at in range(len(piece)):
            found += member.decompress(piece[at : at + 1])
    except zlib.error:
        pass
    return bytes(found)


def lines_of(decoder: JsonDecoder, stream: IO[bytes], damage: Damage, look: lines.Look) -> Iterator[AccessBatch]:
    """Batches of the accesses before the damage, which is told in ``damage``."""
    source = Intact(stream, damage)
    line = 1
    for chunk in lines.chunks(source, damage.file):
        if line == 1:
            look(bytes(chunk))
        if source.is_spent and damage.reason and not source.ends_line and not _is_object(bytes(chunk)):
            damage.left_out = len(chunk) - 1
            return
        batch = AccessBatch()
        line += decoder.add(chunk, damage.file, line, batch)
        damage.records += batch.read
        yield batch


def _is_object(line: bytes) -> bool:
    try:
        strict_json.parse_object(line.strip())
    except Malformed:
        return False
    return True


def avro_of(decoder: Any, content: bytes, damage: Damage, look: Callable[[Any, int], None]) -> Iterator[AccessBatch]:
    """Batches of the accesses in the blocks before the damage. Raises DataError (65) for a file of another schema."""

    def found(reason: str) -> None:
        damage.reason = reason

    for batch in avro.decode(decoder, content, damage.file, look=look, damaged=found):
        damage.records += batch.read
        yield batch
