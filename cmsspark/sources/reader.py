"""The reader of one stream's files, used by each task."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from typing import IO, Any, Final, NamedTuple

import msgspec

from cmsspark.base.access import NO_BYTES, AccessBatch, Quarantined
from cmsspark.base.compiled import unavailable_reason
from cmsspark.base.schemas import Column
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.formats import avro, damaged, lines
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.damaged import Damage
from cmsspark.sources.formats.fast_json import Groups
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.formats.lines import describe
from cmsspark.sources.record_schema import FormatVersions, Note, RecordSchema, load_schema
from cmsspark.sources.registry import find_stream
from cmsspark.sources.rses import StorageSites
from cmsspark.sources.values import Apps, Malformed

# Counts of each log file: its bytes after unpacking, its records, and those that are
# malformed.

#: The kind of the notes. Their name is the file in JSON, as it may be no UTF-8; their
#: details are a name below.
FILE: Final = "file"
#: Numbers of a file: bytes after unpacking (of Avro, of the file), records read,
#: malformed records and their bytes, records of other days.
CONTENT_BYTES, READ, MALFORMED, MALFORMED_BYTES, OUT_OF_DAY = NUMBERS = (
    *("content_bytes", "read", "malformed", "malformed_bytes", "out_of_day"),
)
#: Bytes of a malformed record that are looked at: those of the first record, where
#: several are in one line.
_DESCRIBED_BYTES: Final = 16_384
#: Before the reason why the first record of a file without a well-formed one is malformed.
REASON_PREFIX: Final = "reason "


class FileCounts(msgspec.Struct):
    """The numbers of the files that a task reads. A file may be read by several tasks:
    the numbers add up.
    """

    numbers: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    #: By file, what its first malformed record looks like and why it is malformed.
    reasons: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, file: str, batch: AccessBatch) -> None:
        """Add a batch of a file."""
        numbers = self.numbers.get(file)
        if numbers is None:
            numbers = self.numbers[file] = Counter()
        numbers[CONTENT_BYTES] += batch.content_bytes
        numbers[READ] += batch.read
        if batch.out_of_day:
            numbers[OUT_OF_DAY] += sum(batch.out_of_day.values())
        if batch.malformed:
            numbers[MALFORMED] += len(batch.malformed)
            numbers[MALFORMED_BYTES] += batch.malformed_bytes
            first = batch.malformed[0]
            if file not in self.reasons:
                self.reasons[file] = f"{describe(first.raw[:_DESCRIBED_BYTES])} ({first.reason})"

    def notes(self) -> Iterator[Note]:
        """Yield the numbers as notes; reasons of files of which this task has no
        well-formed record.
        """
        for file, numbers in self.numbers.items():
            for name, count in numbers.items():
                if count:
                    yield FILE, json.dumps(file), count, name
            if numbers[READ] and numbers[READ] == numbers[MALFORMED]:
                yield FILE, json.dumps(file), 1, REASON_PREFIX + self.reasons[file]


# Records whose sizes or times exceed the limit of ``--quarantine-above``: they count as
# malformed.

OVERSIZED = "beyond --quarantine-above"


#: The columns of an access or a job that are summed: bytes, and milliseconds.
BYTES: Final = "read_bytes"
TIMES: Final = ("cpu_ms", "wall_ms")


def select_values(batch: AccessBatch, column: str) -> list[int]:
    """Return the values of a column of all accesses or jobs of the batch that have one."""
    values = [getattr(job, column) for job in batch.jobs] + (getattr(batch, column) or [])
    packed = batch.packed
    if packed is not None and packed.count:
        arrays = {
            BYTES: packed.read_bytes,
            **dict(zip(TIMES, (packed.times or (None,) * 4)[::2], strict=True)),
        }
        array = arrays[column]
        values += [] if array is None else array.tolist()
    return [value for value in values if value is not None and value != NO_BYTES]


def largest(batch: AccessBatch, column: str) -> int:
    """Return the maximum of a column over the accesses or jobs of the batch; 0 where
    none has a value.
    """
    packed = batch.packed
    maximum = max((getattr(job, column) or 0 for job in batch.jobs), default=0)
    maximum = max(maximum, max((value or 0 for value in getattr(batch, column) or ()), default=0))
    if packed is not None and packed.count:
        arrays = {
            BYTES: packed.read_bytes,
            **dict(zip(TIMES, (packed.times or (None,) * 4)[::2], strict=True)),
        }
        if (array := arrays[column]) is not None:
            maximum = max(maximum, int(array.max()))
    return maximum


class OversizedRecord(NamedTuple):
    """A record that exceeds the limit: the name of its file, or the id of its job, its
    values, and its position.
    """

    name: str
    values: dict[str, int]
    file: str
    position: int


class Oversized:
    """The limit, in bytes and in seconds, and the records that exceed it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.records: list[OversizedRecord] = []
        self.count = 0

    def is_exceeded(self, batch: AccessBatch) -> bool:
        """Return whether any record of the batch read more bytes, or took more seconds."""
        return largest(batch, BYTES) > self.limit or any(
            largest(batch, time) > self.limit * 1000 for time in TIMES
        )

    def add(self, batch: AccessBatch, file: str, position: int) -> None:
        """Add the single access or job of the batch."""
        self.count += 1
        if len(self.records) < 100:
            name = batch.jobs[0].job_id if batch.jobs else batch.unpack().lfns[0]
            values = {column: largest(batch, column) for column in (BYTES, *TIMES)}
            self.records.append(OversizedRecord(name, values, file, position))

    def notes(self) -> Iterator[Note]:
        """Yield the number of records that exceed the limit, for the manifest."""
        if self.count:
            yield "oversized", "oversized", self.count, ""


class LimitedLines:
    """A decoder of JSON lines with the limit applied in ``add``."""

    def __init__(self, decoder: JsonDecoder, oversized: Oversized) -> None:
        self._decoder = decoder
        self._oversized = oversized

    def add(self, content: Content, file: str, first_line: int, batch: AccessBatch) -> int:
        """As :meth:`JsonDecoder.add`."""
        trial = AccessBatch()
        lines = self._decoder.add(content, file, first_line, trial)
        if not self._oversized.is_exceeded(trial):
            return self._decoder.add(content, file, first_line, batch)
        for number, line in enumerate(
            [line + b"\n" for line in bytes(content).removesuffix(b"\n").split(b"\n")]
        ):
            single = AccessBatch()
            self._decoder.add(line, file, first_line + number, single)
            if not self._oversized.is_exceeded(single):
                self._decoder.add(line, file, first_line + number, batch)
                continue
            self._oversized.add(single, file, first_line + number)
            batch.read += 1
            raw = line.removesuffix(b"\n")
            batch.malformed.append(
                Quarantined.cut(file, first_line + number, OVERSIZED, raw, len(raw))
            )
        return lines


class _NoFastAvro:
    """Replaces the compiled reader, which does not support the limit."""

    def read(self, *arguments: Any) -> None:
        """Return None: no file is plain."""


class _LimitedAvro:
    """A decoder of Avro records that decodes them one by one and applies the limit to each."""

    def __init__(self, decoder: Any, oversized: Oversized, file: str) -> None:
        self.avro_fields, self.avro_required = decoder.avro_fields, decoder.avro_required
        self.fast_avro = _NoFastAvro()
        self.take = decoder.take
        if hasattr(decoder, "take_numbered"):
            self.take_numbered = decoder.take_numbered
        self._decoder = decoder
        self._oversized = oversized
        self._file = file
        self._position = 0

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """As the decoder's. Raises Malformed also for a record that exceeds the limit."""
        position, self._position = self._position, self._position + 1
        record = self._decoder.avro_record(row)
        single = AccessBatch()
        self._decoder.take([record], single)
        if self._oversized.is_exceeded(single):
            self._oversized.add(single, self._file, position)
            raise Malformed(OVERSIZED)
        return record


class Reader:
    """Reads a stream's files of one day in one format (``DayInput.format_name``). Each
    task creates its own.

    The registry names the format's decoder. ``line_limit``: maximum bytes of a JSON
    line; a longer one is malformed. ``above``: a record that read more bytes, or took
    more seconds, is malformed too; None means no limit. ``meanings``: those of fields
    whose producers changed them (:class:`cmsspark.sources.layout.Epochs`).
    ``storage_sites``: where the jobs of a site have their data, if elsewhere. Raises
    UsageError (2) for a stream or format that the registry does not have.
    """

    def __init__(
        self,
        stream: str,
        format_name: str,
        day: date,
        line_limit: int = lines.LINE_LIMIT,
        above: int | None = None,
        meanings: Mapping[str, str] | None = None,
        storage_sites: StorageSites | None = None,
    ) -> None:
        format_ = find_stream(stream).format(format_name)
        self.decoder: Any = load_decoder(stream, format_name)(day, Apps.load(), format_.name)
        if meanings:
            self.decoder.use_meanings(meanings)
        if storage_sites:
            self.decoder.storage_sites = storage_sites
        self._oversized = None if above is None else Oversized(above)
        self._lines: Any = self.decoder
        if self._oversized is not None and not format_.is_avro:
            self._lines = LimitedLines(self.decoder, self._oversized)
        self._line_limit = line_limit
        self.is_avro = format_.is_avro
        self._sampler = Sampler(stream, format_name)
        self._damages: list[Damage] = []
        self._file_counts = FileCounts()

    def keep_times(self) -> None:
        """Keep the time of each access, where its decoder can; before anything is read."""
        if hasattr(self.decoder, "keep_times"):
            self.decoder.keep_times()

    @property
    def oversized(self) -> list[OversizedRecord]:
        """The first hundred records that exceed the limit."""
        return [] if self._oversized is None else self._oversized.records

    @property
    def groups(self) -> Groups:
        """The groups that batches refer to; grows while reading."""
        groups: Groups = self.decoder.groups
        return groups

    def file(
        self, stream: IO[bytes], file: str, *, accept_damaged: bool = False
    ) -> Iterator[AccessBatch]:
        """Yield batches of a whole file. Raises DataError (65) with its name when it is
        damaged. With ``accept_damaged`` the intact part is read and the damage is
        reported in the notes.
        """
        damage = Damage(file)
        self._damages.append(damage)
        if self.is_avro:
            content, decoder = stream.read(), self.decoder
            if self._oversized is not None:
                # Damage is reported by the second reading.
                first = avro.decode(decoder, content, file, damaged=lambda reason: None)
                if any(self._oversized.is_exceeded(batch) for batch in first):
                    decoder = _LimitedAvro(decoder, self._oversized, file)
            if accept_damaged:
                batches = damaged.read_avro(decoder, content, damage, self._sampler.sample_schema)
            else:
                batches = avro.decode(decoder, content, file, self._sampler.sample_schema)
            self._file_counts.add(file, AccessBatch(content_bytes=len(content)))
        elif accept_damaged:
            batches = damaged.read_lines(
                self._lines, stream, damage, self._sampler.sample_lines, self._line_limit
            )
        else:
            batches = lines.decode_file(
                self._lines, stream, file, self._sampler.sample_lines, self._line_limit
            )
        for batch in batches:
            self._sampler.count_records(batch.read)
            self._file_counts.add(file, batch)
            yield batch

    def chunk(self, chunk: bytes, file: str) -> AccessBatch:
        """Return a batch of whole lines that the caller has read. Line numbers count
        from the start of the chunk.

        Raises DataError (65) if the lines begin as those of a packed file.
        """
        if self.is_avro:
            raise TypeError("an Avro file cannot be read in chunks")
        lines.check_text(chunk[: lines.HEAD_BYTES], file)
        self._sampler.sample_lines(chunk)
        line, batch = 1, AccessBatch()
        for piece in lines.pieces(chunk, line_limit=self._line_limit):
            if isinstance(piece, lines.LongLine):
                line += piece.add_to(batch, file, line)
            else:
                batch.content_bytes += len(piece)
                line += self._lines.add(piece, file, line, batch)
        self._sampler.count_records(batch.read)
        self._file_counts.add(file, batch)
        return batch

    def notes(self) -> list[Note]:
        """Return notes about the files: their numbers, a sample of their fields,
        accepted damage, records above the limit, and whether compiled code read them.
        """
        reader = ("reader", unavailable_reason() or "compiled", 1, "")
        oversized = () if self._oversized is None else self._oversized.notes()
        damages = (note for damage in self._damages for note in damage.notes())
        return [reader, *oversized, *self._sampler.notes(), *damages, *self._file_counts.notes()]


# A sample of the first records of files: fields that no schema has, and the types of
# required fields. Its cost does not depend on the size of the input. It is reported as
# notes, which contain names of fields, types and lengths but never a text of a record.

#: Sampled records at most of one file, of all files of a task, and one more for each so
#: many records read.
OF_FILE: Final = 100
OF_TASK: Final = 200
ONE_IN: Final = 2000
#: Bytes at the start of a file that are sampled.
_HEAD: Final = 256 * 1024
#: New fields that a task reports at most, as a record may have any number of them.
_NEW_FIELDS: Final = 50
_SHOWN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")


@cache
def load_versions(stream: str, format_name: str) -> FormatVersions:
    """Return the versions of a stream's format: those of its decoder, else the one of its schema."""
    load_versions = getattr(load_decoder(stream, format_name), "format_versions", None)
    if load_versions is not None:
        versions: FormatVersions = load_versions()
        return versions
    return FormatVersions.from_schema(
        load_schema(f"{stream}/{find_stream(stream).format(format_name).name}")
    )


def load_needed(stream: str, version: str) -> tuple[Column, ...]:
    """Return the needed columns of a format version, by the name that notes have."""
    for format_ in find_stream(stream).formats:
        by_name = load_versions(stream, format_.name).by_name
        if version in by_name:
            return by_name[version].needed
    raise KeyError(f"{stream} has no format version {version}")


class Sampler:
    """Samples the first records of the files that a task reads."""

    def __init__(self, stream: str, format_name: str) -> None:
        self._versions = load_versions(stream, format_name)
        self._remaining = OF_TASK
        self._read = 0
        self._decode = msgspec.json.Decoder().decode
        #: (version, field, type) → records; the field is empty for the records themselves.
        self.seen: Counter[tuple[str, str, str]] = Counter()
        #: (version, field) → records and an example of the first.
        self.new: dict[tuple[str, str], tuple[int, str]] = {}

    def count_records(self, records: int) -> None:
        """Count records that were read: a larger input allows a larger sample."""
        more, self._read = divmod(self._read + records, ONE_IN)
        self._remaining += more

    def sample_lines(self, chunk: bytes) -> None:
        """Sample the first lines of a file."""
        count = max(1, min(OF_FILE, self._remaining))
        head = chunk[:_HEAD]
        lines = head.split(b"\n", count)
        # The last piece is the rest, or a line that may be cut.
        for line in lines[:-1]:
            if line and not line.isspace():
                self._remaining -= 1
                self._line(line)

    def sample_schema(self, fields: Mapping[str, Any], records: int) -> None:
        """Add the schema of an Avro file with ``records`` records."""
        (schema,) = self._versions.by_name.values()
        self.seen[schema.name, "", "records"] += records
        for column in schema.needed:
            kind = _avro_type(fields[column.name]) if column.name in fields else ""
            self.seen[schema.name, column.name, kind] += records
        for name in sorted(fields.keys() - schema.field_names):
            self._new(schema, name, records, f"of Avro type {_avro_type(fields[name])}")

    def _line(self, line: bytes) -> None:
        try:
            record = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        is_flat = self._versions.is_flat(record)
        data = (
            {name: value for name, value in record.items() if name != "metadata"}
            if is_flat
            else record.get("data")
        )
        version = self._versions.version_of(data)
        if version is None:
            return
        name, data = version
        schema = self._versions.by_name[name]
        metadata = record.get("metadata")
        self.seen[schema.name, "", "records"] += 1
        missing: Any = self  # no value of a record
        for column in schema.needed:
            if column.name.startswith("metadata."):
                continue
            entry = data.get(column.name[len(schema.prefix) :], missing)
            self.seen[schema.name, column.name, "" if entry is missing else _kind(entry)] += 1
        self._new_fields(schema, data, schema.prefix)
        if isinstance(metadata, dict):
            if "timestamp" in metadata:
                self.seen[schema.name, "metadata.timestamp", _kind(metadata["timestamp"])] += 1
            self._new_fields(schema, metadata, "metadata.")
        for name in () if is_flat else record.keys() - {"data", "metadata"}:
            self._new(schema, name, 1, _example(record[name]))

    def _new_fields(self, schema: RecordSchema, values: Mapping[str, Any], prefix: str) -> None:
        for name in () if schema.is_open else values:
            field = prefix + name
            if field in schema.field_names:
                continue
            if (entry := self.new.get((schema.name, field))) is not None:
                self.new[schema.name, field] = entry[0] + 1, entry[1]
            else:
                self._new(schema, field, 1, _example(values[name]))

    def _new(self, schema: RecordSchema, field: str, records: int, example: str) -> None:
        shown = field if _SHOWN_NAME.fullmatch(field) else f"a name of {len(field)} characters"
        count, first = self.new.get((schema.name, shown), (0, example))
        if count or len(self.new) < _NEW_FIELDS:
            self.new[schema.name, shown] = (count + records, first)

    def notes(self) -> Iterator[Note]:
        """Yield the sample as notes, for :mod:`cmsspark.counting.drift`."""
        for (version, name, kind), count in self.seen.items():
            yield (
                "sample",
                "seen",
                count,
                json.dumps({"form": version, "field": name, "type": kind}),
            )
        for (version, name), (count, example) in self.new.items():
            yield (
                "sample",
                "new",
                count,
                json.dumps({"form": version, "field": name, "example": example}),
            )


def _kind(value: Any) -> str:
    """Return the type of a JSON value, as distinguished by the counting rules."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "text"
        case int():
            return "whole number" if value >= 0 else "negative number"
        case float():
            return "whole number" if value.is_integer() and value >= 0 else "fraction"
        case dict():
            return "object"
    return "array"


def _example(value: Any) -> str:
    """Return a description of a value without its text, which might be a person's name
    or a secret.
    """
    match value:
        case bool():
            return f"boolean {str(value).lower()}"
        case int() | float():
            return f"number {value!r}"[:40]
        case str():
            return f"text of {len(value)} characters"
        case dict():
            return f"object of {len(value)} fields"
        case list():
            return f"array of {len(value)} values"
    return "null"


def _avro_type(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(_avro_type(branch) for branch in kind if branch != "null") or "null"
    if isinstance(kind, dict):
        return str(kind.get("logicalType") or kind.get("type"))
    return str(kind)
