"""What the decoders of JSON sources share: chunks of lines in, batches of accesses out.

A chunk is decoded whole by msgspec into typed records with the needed fields only. Where that fails, or where the chunk
is not plainly one object a line, it goes line by line, and a line that fails there is judged alone by
:mod:`cmsspark.sources.strict_json`, whose word is final.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any

import msgspec
import numpy as np

from cmsspark import days
from cmsspark.access import RAW_LIMIT, AccessBatch, Group, Quarantined
from cmsspark.sources import strict_json
from cmsspark.sources.fields import Apps, person
from cmsspark.sources.strict_json import Fields, Malformed

#: An integer from 0 to 2^63-1, or a float of whole value below 2^63 (rule 9).
Long = (
    Annotated[int, msgspec.Meta(ge=0, le=strict_json.MAX_LONG)]
    | Annotated[float, msgspec.Meta(ge=0, lt=2.0**63, multiple_of=1)]
)

_NEWLINE, _OPENING, _CLOSING = b"\n{}"
_BLANK_LINE = re.compile(rb"[ \t]*")
#: No date reaches further; what lies beyond keeps one count.
_LAST_DAY_NUMBER = 2_932_897


#: A chunk that fails is tried again in so many pieces, and these again, down to single lines.
PIECES = 16


class Metadata(msgspec.Struct, gc=False):
    """The part of a record that the transport adds; ``timestamp`` in seconds, ms or µs, told by size."""

    timestamp: Long | None = None


class Coder:
    """Small integers for what records share, one for each distinct group; lives as long as a task."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._numbers: dict[Group, int] = {}

    def number(self, site: str, app: str, user: str | None, remote: int) -> int:
        """The group's number; ``user`` is a person's name as logged."""
        group = Group(site, app, user, remote)
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self.groups)
            self.groups.append(group)
        return number


class JsonDecoder(ABC):
    """A source of JSON lines. Subclasses say what their records are; this says how lines are read.

    ``groups`` of the batches index ``coder.groups``.
    """

    stream: str
    record_type: Any

    def __init__(self, day: date, apps: Apps) -> None:
        self.day_number = days.start_ms(day) // days.DAY_MS
        self.low_ms, self.high_ms = days.timestamp_ms_bounds(day)
        self.apps = apps
        self.coder = Coder()
        self._people: dict[str | None, str | None] = {}
        self._decoder = msgspec.json.Decoder(self.record_type)

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to."""
        return self.coder.groups

    @abstractmethod
    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin each record and append those that are accesses to ``batch``. Raises Malformed for a record that is not
        typed as its own form wants; ``batch`` must then be untouched for a call with one record.
        """

    @abstractmethod
    def strict(self, fields: Fields) -> Any:
        """The record of a line that was read by the letter. Raises Malformed."""

    def decode_lines(self, chunk: bytes) -> list[Any]:
        """The records of whole lines, typed. Raises what msgspec raises."""
        found: list[Any] = self._decoder.decode_lines(chunk)
        return found

    def decode_line(self, line: bytes) -> Any:
        """The record of one line, typed. Raises what msgspec raises."""
        return self._decoder.decode(line)

    def decode(self, chunk: bytes, file: str, first_line: int = 1) -> AccessBatch:
        """The accesses of ``chunk``, whole lines of ``file`` that end in ``\\n``."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n")
        whole = self._whole(chunk)
        if whole is None:
            whole = AccessBatch()
            self._in_pieces(chunk, file, first_line, whole)
        return whole

    def _whole(self, chunk: bytes) -> AccessBatch | None:
        """The chunk decoded at once; None where that fails, or where it is not plainly an object a line."""
        lines = _object_lines(chunk)
        if not lines:
            return None
        batch = AccessBatch(read=lines)
        try:
            records = self.decode_lines(chunk)
            if len(records) != lines:
                return None
            self.take(records, batch)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Malformed):
            return None
        return batch

    def _in_pieces(self, chunk: bytes, file: str, first_line: int, into: AccessBatch) -> None:
        """Decode pieces of a chunk that failed as a whole: what is right around a bad line still goes fast."""
        line = first_line
        for piece in _pieces(chunk):
            lines = piece.count(b"\n")
            batch = self._whole(piece)
            if batch is not None:
                into.absorb(batch)
            elif lines <= PIECES:
                self._line_by_line(piece, file, line, into)
            else:
                self._in_pieces(piece, file, line, into)
            line += lines

    def _line_by_line(self, chunk: bytes, file: str, first_line: int, batch: AccessBatch) -> None:
        for number, line in enumerate(chunk.removesuffix(b"\n").split(b"\n"), first_line):
            if _BLANK_LINE.fullmatch(line):
                continue
            batch.read += 1
            try:
                self.take([self._record(line)], batch)
            except Malformed as error:
                batch.malformed.append(Quarantined(file, number, str(error), line[:RAW_LIMIT]))

    def _record(self, line: bytes) -> Any:
        try:
            return self.decode_line(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.strict(strict_json.parse_object(line))

    def out_of_day(self, timestamp: int | float, batch: AccessBatch) -> bool:
        """True, and counted, when ``timestamp`` names another day than the folder's (rule 6)."""
        number = days.day_number(int(timestamp))
        if number == self.day_number:
            return False
        number = min(number, _LAST_DAY_NUMBER)
        batch.out_of_day[number] = batch.out_of_day.get(number, 0) + 1
        return True

    def person(self, identity: str | None) -> str | None:
        """:func:`cmsspark.sources.fields.person`, remembered."""
        try:
            return self._people[identity]
        except KeyError:
            if len(self._people) >= Apps.REMEMBERED:
                self._people.clear()
            found = self._people[identity] = person(identity)
            return found


def _object_lines(chunk: bytes) -> int:
    """The lines of a chunk in which every newline stands between ``}`` and ``{`` (or ends it); 0 for any other chunk.

    No value of JSON holds such a newline, so in such a chunk records and lines are the same, or decoding fails.
    """
    if not chunk.startswith(b"{") or not chunk.endswith(b"\n"):
        return 0
    content = np.frombuffer(chunk, np.uint8)
    newlines = np.flatnonzero(content == _NEWLINE)
    if (content[newlines - 1] != _CLOSING).any() or (content[newlines[:-1] + 1] != _OPENING).any():
        return 0
    return len(newlines)


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """``PIECES`` pieces of as many lines each, so that every one has fewer lines than the chunk (or one)."""
    newlines = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE)
    count = min(PIECES, len(newlines))
    start = 0
    for number in range(1, count + 1):
        end = int(newlines[len(newlines) * number // count - 1]) + 1
        yield chunk[start:end]
        start = end


def parts_of(fields: Fields) -> tuple[Any, Metadata | None]:
    """``data`` and ``metadata`` of a record read by the letter (rule 5). Raises Malformed.

    ``data`` must be there; each value under ``metadata`` must be an object with a well-typed timestamp, or null.
    """
    if "data" not in fields:
        raise Malformed("data: missing")
    metadata = None
    for value in fields.get("metadata", ()):
        if value is None:
            metadata = None
        elif isinstance(value, dict):
            metadata = Metadata(strict_json.last(value, "timestamp", strict_json.whole, "metadata."))
        else:
            raise Malformed(f"metadata: an object is wanted, found {strict_json.kind_of(value)}")
    return fields["data"], metadata


def objects(values: list[Any], field: str = "data") -> Iterator[Fields]:
    """The values, each of which must be an object. Raises Malformed."""
    for value in values:
        if not isinstance(value, dict):
            raise Malformed(f"{field}: an object is wanted, found {strict_json.kind_of(value)}")
        yield value
