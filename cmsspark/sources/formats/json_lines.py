"""The base class of decoders of JSON lines: from chunks of lines to batches of accesses.

:mod:`cmsspark.sources.formats.fast_json` reads lines that fit a learned template. msgspec decodes other lines that are
plainly one object each, all at once, into typed records with the needed fields only. A line that fails, or is not
plain, is parsed alone by :mod:`cmsspark.sources.formats.strict_json`, which decides. Records are binned in columns: a
list for each field is quicker than a loop over records.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache
from itertools import pairwise
from typing import Any, Final, get_type_hints

import msgspec

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch, Group
from cmsspark.sources.fields import Apps, MemoDict, as_is, user_name
from cmsspark.sources.formats import strict_json
from cmsspark.sources.formats.chunk import Chunk, Content
from cmsspark.sources.formats.fast_json import COMPILED, FastLineReader
from cmsspark.sources.formats.fast_keys import FastKeyReader
from cmsspark.sources.formats.line_template import RequiredFields, RequiredFieldsOf
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.values import (
    Long,
    Malformed,
    PlainText,
    kind_of,
    long,
    long_text,
    normalised_lfns,
    text,
    whole,
)

BLANK_LINE = re.compile(rb"[ \t]*")

#: Errors of msgspec for a line that it rejects.
REJECTED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: So few lines are read one by one instead of at once, and all lines after so many failed attempts.
FEW, TRIES = 3, 16


class Metadata(msgspec.Struct, gc=False):
    """The part of a record that the transport adds; ``timestamp`` in seconds, ms or µs, by its size."""

    timestamp: Long | None = None


class Coder:
    """Numbers the distinct groups of records; lives as long as a task."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._numbers: dict[Group, int] = {}

    def number(self, site: str, app: str, user: str | None, remote: int, reader: str | None = None) -> int:
        """Return the group's number; ``user`` is the user's name as logged."""
        group = Group(site, app, user, remote, reader)
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self.groups)
            self.groups.append(group)
        return number


#: The strict check of values of a type in a record.
_CHECKS: Final = (
    (str | None, text), (str | msgspec.UnsetType | None, text), (Long | None, long), (PlainText | None, long_text),
)  # fmt: skip


@cache
def struct_fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return the name, the key in JSON and the strict check of each field of a record that has one."""
    fields = msgspec.structs.fields(struct)
    return tuple(
        (field.name, field.encode_name, check) for field in fields for kind, check in _CHECKS if field.type == kind
    )


@cache
def _data_type(record_type: Any) -> Any:
    """Return the type of ``data`` in a record."""
    return get_type_hints(record_type)["data"]


def check_fields(struct: type[msgspec.Struct], fields: Fields, where: str = "data.") -> dict[str, Any]:
    """Return the fields of a strictly parsed object by their names in ``struct``. Raises Malformed."""
    return {name: last(fields, key, check, where) for name, key, check in struct_fields(struct)}


class JsonDecoder(ABC):
    """A decoder of JSON lines. Subclasses define the records; this class reads the lines.

    ``groups`` of the batches index ``coder.groups``.
    """

    stream: str
    record_type: Any

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        self.format_name = format_name
        self.day_number = dates.start_ms(day) // dates.DAY_MS
        self.low_ms, self.high_ms = dates.timestamp_ms_bounds(day)
        self.apps = apps
        self.coder = Coder()
        self.user_names = MemoDict(user_name, Apps.CACHE_SIZE)
        self._decoder = msgspec.json.Decoder(self.record_type)
        self._fast_lines: FastLineReader | FastKeyReader | None = None

    def use_fast_lines(
        self, required: RequiredFields, required_of: RequiredFieldsOf, code: Callable[[tuple[Any, ...]], int]
    ) -> None:
        """Read lines that fit a template by compiled code, where it is available.

        The first two shared texts of ``required`` are a user's and an application's.

        ``code`` returns the group of (user, application, other shared texts).
        """
        meanings = (self.user_names.__getitem__, self.apps.of.__getitem__, *[as_is] * (len(required.shared) - 2))
        if not COMPILED:
            return
        self._fast_lines = FastLineReader(self.day_number, required, required_of, meanings, code)

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to."""
        return self.coder.groups

    @abstractmethod
    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin each record and append accesses to ``batch``."""

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line: ``data`` by the types of the record's. Raises Malformed."""
        values, metadata = parts_of(fields)
        data_type = _data_type(self.record_type)
        checked: dict[str, Any] = {}
        for data in objects(values):
            checked = check_fields(data_type, data)
        return self.record_type(data_type(**checked), metadata)

    def decode_lines(self, lines: Content) -> list[Any]:
        """Return the records of whole lines, typed. Raises msgspec's errors."""
        records: list[Any] = self._decoder.decode_lines(lines)
        return records

    def decode_line(self, line: bytes) -> Any:
        """Return the record of one line, typed. Raises msgspec's errors."""
        return self._decoder.decode(line)

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
        """Add plain lines. A line that fails is read alone; the lines around it are still decoded at once."""
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
                cuts = (first, (first + end) // 2, end) if bad is None else (first, bad, bad + 1, end)
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
        """Return the ``data`` of records of the folder's day. Others are counted as out_of_day (rule 6)."""
        low, high, is_out = self.low_ms, self.high_ms, self._is_out_of_day
        return [
            record.data
            for record in records
            if (metadata := record.metadata) is None
            or (timestamp := metadata.timestamp) is None
            or low <= timestamp < high
            or not is_out(timestamp, batch)
        ]

    def _is_out_of_day(self, timestamp: int | float, batch: AccessBatch) -> bool:
        number = dates.day_number(int(timestamp))
        if number == self.day_number:
            return False
        batch.count_out_of_day(number)
        return True


def add_lfns(data: list[Any], names: list[str | None], batch: AccessBatch) -> list[Any]:
    """Append the logged ``names``, normalised (rule 10), to the batch's lfns; returns the data of records with a name.

    Records without a name are counted as no_lfn.
    """
    lfns = normalised_lfns(names)
    if "" in lfns:
        data = [record for record, lfn in zip(data, lfns, strict=True) if lfn]
        batch.no_lfn += len(lfns) - len(data)
        lfns = [lfn for lfn in lfns if lfn]
    batch.lfns += lfns
    return data


def add_bytes(sizes: list[Any], batch: AccessBatch) -> None:
    """Append sizes, which may be floats of whole value, to the batch's bytes read."""
    if sum(sizes).__class__ is float:
        sizes = list(map(int, sizes))
    if batch.read_bytes is None:
        batch.read_bytes = []
    batch.read_bytes += sizes


def parts_of(fields: Fields) -> tuple[Any, Metadata | None]:
    """``data`` and ``metadata`` of a strictly parsed record (rule 5). Raises Malformed.

    ``data`` is required; each value under ``metadata`` must be an object with a well-typed timestamp, or null.
    """
    if "data" not in fields:
        raise Malformed("data: missing")
    metadata = None
    for value in fields.get("metadata", ()):
        if value is None:
            metadata = None
        elif isinstance(value, dict):
            metadata = Metadata(strict_json.last(value, "timestamp", whole, "metadata."))
        else:
            raise Malformed(f"metadata: expected an object, found {kind_of(value)}")
    return fields["data"], metadata


def objects(values: list[Any], field: str = "data") -> Iterator[Fields]:
    """Yield the values, each of which must be an object. Raises Malformed."""
    for value in values:
        if not isinstance(value, dict):
            raise Malformed(f"{field}: expected an object, found {kind_of(value)}")
        yield value
