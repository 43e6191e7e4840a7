"""The base class of decoders of JSON lines: from chunks of lines to batches of accesses.

:mod:`cmsspark.sources.formats.fast_json` reads lines that fit a learned template.
     msgspec decodes other lines that are plainly one object each, all at once, into
     typed records with the needed fields only. A line that fails, or is not plain, is
     parsed alone by :mod:`cmsspark.sources.formats.strict_json`, which decides. Records
     are binned in columns: a list for each field is quicker than a loop over records.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import pairwise
from typing import Any, ClassVar

import msgspec

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch
from cmsspark.sources.formats import strict_json
from cmsspark.sources.formats.chunk import Chunk, Content
from cmsspark.sources.formats.fast_json import FastKeyReader, FastLineReader, Groups
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.rses import StorageSites
from cmsspark.sources.values import (
    Apps,
    Long,
    Malformed,
    MemoDict,
    integer,
    name_type,
    normalised_lfns,
    site_name,
    user_name,
)

BLANK_LINE = re.compile(rb"[ \t]*")

#: Errors of msgspec for a line that it rejects.
REJECTED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: So few lines are read one by one instead of at once, and all lines after so many
#: failed attempts.
FEW, TRIES = 3, 16


class Metadata(msgspec.Struct, gc=False):
    """The part of a record that the transport adds; ``timestamp`` in seconds, ms or µs,
    by its size.
    """

    timestamp: Long | None = None


class CheckedRecord(msgspec.Struct, gc=False):
    """A record that was checked strictly."""

    data: Any
    metadata: Metadata | None = None
    format_version: str = ""


def line_type(name: str, data: Any, **attributes: Any) -> Any:
    """Return the type of a line with such ``data``. ``attributes``: of the class."""
    fields: list[Any] = [("data", data), ("metadata", Metadata | None, None)]
    return msgspec.defstruct(name, fields, gc=False, namespace=attributes)


class JsonDecoder(ABC):
    """A decoder of JSON lines. Subclasses define the records; this class reads the lines.

    ``groups`` of the batches index ``groups``, those of the decoder.
    """

    stream: ClassVar[str] = ""

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        self.format_name = format_name
        self.day_number = dates.start_ms(day) // dates.DAY_MS
        self.low_ms, self.high_ms = dates.timestamp_ms_bounds(day)
        self.apps = apps
        #: The groups that batches refer to.
        self.groups: Any = Groups()
        #: Where the jobs of a site have their data, which the reader sets (rule 72).
        self.storage_sites: StorageSites = {}
        self.user_names = MemoDict(user_name, Apps.CACHE_SIZE)
        self.site_names = MemoDict(site_name, Apps.CACHE_SIZE)
        #: The decoder that last succeeded comes first.
        self._decoders = [msgspec.json.Decoder(kind) for kind in self.line_types()]
        self._fast_lines: FastLineReader | FastKeyReader | None = None
        self._keeps_times = False

    def keep_times(self) -> None:
        """Have batches with the time of each access. Compiled readers know none, so that
        lines take longer.
        """
        self._fast_lines, self._keeps_times = None, True

    @abstractmethod
    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin each record and append accesses to ``batch``."""

    def use_meanings(self, meanings: Mapping[str, str]) -> None:  # noqa: B027
        """Take what fields mean on the day, where their producers changed that. Most
        decoders read no such field.
        """

    @abstractmethod
    def line_types(self) -> Sequence[Any]:
        """Return the types of a line, in the order in which they are tried."""

    @abstractmethod
    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""

    def checked(self, records: list[Any]) -> list[Any]:
        """Return records of one type, converted where the type alone does not do it.
        Raises msgspec's errors.
        """
        return records

    def decode_lines(self, lines: Content) -> list[Any]:
        """Return the records of whole lines, of the type that last succeeded. Raises
        msgspec's errors.
        """
        return self.checked(self._decoders[0].decode_lines(lines))

    def decode_line(self, line: bytes) -> Any:
        """Return the record of one line of any type. Raises msgspec's errors."""
        refused: Exception = msgspec.ValidationError("there is no type of line")
        for position, decoder in enumerate(self._decoders):
            try:
                (record,) = self.checked([decoder.decode(line)])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                refused = error
                continue
            if position:
                self._decoders.insert(0, self._decoders.pop(position))
            return record
        try:
            raise refused
        finally:
            # The error knows this frame: together they would keep the batch for long.
            del refused

    def decode(self, content: Content, file: str, first_line: int = 1) -> AccessBatch:
        """Return the accesses of ``content``, whole lines of ``file`` that end in ``\\n``."""
        batch = AccessBatch()
        self.add(content, file, first_line, batch)
        return batch.unpack()

    def add(self, content: Content, file: str, first_line: int, batch: AccessBatch) -> int:
        """Add the accesses of ``content`` to ``batch`` and return the number of lines."""
        if self._fast_lines is None:
            chunk = Chunk(content, file, first_line)
            self._add_all(chunk, batch)
            return chunk.lines
        lines, remaining, numbers = self._fast_lines.read(content, batch)
        if remaining:
            self._add_all(Chunk(remaining, file, first_line, numbers), batch)
        return lines

    def _add_all(self, chunk: Chunk, batch: AccessBatch) -> None:
        for first, end, is_plain in chunk.runs():
            if is_plain:
                self._add_at_once(chunk, first, end, batch)
            else:
                self._add_each(chunk, first, end, batch)

    def _add_at_once(self, chunk: Chunk, first: int, end: int, batch: AccessBatch) -> None:
        """Add plain lines. A line that fails is read alone; the lines around it are
        still decoded at once.
        """
        todo, tries = [(first, end)], 0
        while todo:
            first, end = todo.pop()
            if end - first <= FEW or tries > TRIES:
                self._add_each(chunk, first, end, batch)
                continue
            try:
                records = self.decode_lines(chunk.part(first, end))
            except REJECTED as error:
                tries += 1
                bad = chunk.suspect(error, first, end)
                # The list is popped from its end, so the first lines go last.
                cuts = (
                    (first, (first + end) // 2, end) if bad is None else (first, bad, bad + 1, end)
                )
                todo += [part for part in reversed(list(pairwise(cuts))) if part[0] < part[1]]
                continue
            if len(records) == end - first:
                batch.read += len(records)
                self.take(records, batch)
            else:
                self._add_each(chunk, first, end, batch)

    def _add_each(self, chunk: Chunk, first: int, end: int, batch: AccessBatch) -> None:
        """Add lines one by one; malformed ones are quarantined in the batch."""
        records = []
        for number in range(first, end):
            line = chunk.line(number)
            if BLANK_LINE.fullmatch(line):
                continue
            batch.read += 1
            try:
                records.append(self._record(line))
            except Malformed as error:
                batch.malformed.append(chunk.quarantined(number, str(error)))
        self.take(records, batch)

    def _record(self, line: bytes) -> Any:
        try:
            return self.decode_line(line)
        except REJECTED:
            return self.strict(strict_json.parse_object(line))

    def of_the_day(self, records: list[Any], batch: AccessBatch) -> list[Any]:
        """Return the ``data`` of records of the folder's day. Others are counted as
        out_of_day (rule 6).
        """
        low, high, is_out = self.low_ms, self.high_ms, self._is_out_of_day
        if self._keeps_times:
            self._times = {
                id(record.data): record.metadata and record.metadata.timestamp
                for record in records
            }
        return [
            record.data
            for record in records
            if (metadata := record.metadata) is None
            or (timestamp := metadata.timestamp) is None
            or low <= timestamp < high
            or not is_out(timestamp, batch)
        ]

    def add_times(self, data: list[Any], batch: AccessBatch) -> None:
        """Append the times of accesses to the batch, where they are kept."""
        if self._keeps_times:
            times = [self._times[id(record)] for record in data]
            if batch.times_ms is None:
                batch.times_ms = []
            batch.times_ms += [
                None if time is None else dates.timestamp_ms(int(time)) for time in times
            ]

    def _is_out_of_day(self, timestamp: int | float, batch: AccessBatch) -> bool:
        number = dates.day_number(int(timestamp))
        if number == self.day_number:
            return False
        batch.count_out_of_day(number)
        return True


def add_lfns(
    data: list[Any], names: list[str | None], batch: AccessBatch
) -> tuple[list[Any], list[Any]]:
    """Append the logged ``names``, normalised (rule 10), to the batch's lfns; returns
    the data of records with a name, and of those without one.
    """
    lfns, unnamed = normalised_lfns(names), []
    if "" in lfns:
        unnamed = [record for record, lfn in zip(data, lfns, strict=True) if not lfn]
        data = [record for record, lfn in zip(data, lfns, strict=True) if lfn]
        lfns = [lfn for lfn in lfns if lfn]
    batch.lfns += lfns
    return data, unnamed


def add_bytes(sizes: list[Any], batch: AccessBatch) -> None:
    """Append sizes, which may be floats of whole value, to the batch's bytes read."""
    if sum(sizes).__class__ is float:
        sizes = list(map(int, sizes))
    if batch.read_bytes is None:
        batch.read_bytes = []
    batch.read_bytes += sizes


def split(fields: Fields) -> tuple[Any, Metadata | None]:
    """``data`` and ``metadata`` of a strictly parsed record (rule 5). Raises Malformed.

    ``data`` is required; each value under ``metadata`` must be an object with a
    well-typed timestamp, or null.
    """
    if "data" not in fields:
        raise Malformed("data: missing")
    metadata = None
    for value in fields.get("metadata", ()):
        if value is None:
            metadata = None
        elif isinstance(value, dict):
            metadata = Metadata(strict_json.last(value, "timestamp", integer, "metadata."))
        else:
            raise Malformed(f"metadata: expected an object, found {name_type(value)}")
    return fields["data"], metadata


def split_flat(fields: Fields, key: str) -> tuple[Any, Metadata | None]:
    """As :func:`split`, where the record itself may be the ``data``: it has then
    ``key`` and no ``data``.
    """
    if "data" not in fields and key not in fields:
        raise Malformed(f"neither data nor {key} is there")
    return split(fields if "data" in fields else {**fields, "data": [fields]})
