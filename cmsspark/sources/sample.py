"""A sample of the first records of files: fields that no schema has, and the types of
required fields.

The cost of a sample does not depend on the size of the input. It is reported as notes,
which contain names of fields, types and lengths but never a text of a record.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from cmsspark.base.schemas import Column
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.record_schema import FormatVersions, Note, RecordSchema, load_schema
from cmsspark.sources.registry import find_stream

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
        for field in sorted(fields.keys() - schema.field_names):
            self._new(schema, field, records, f"of Avro type {_avro_type(fields[field])}")

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
        for field in () if is_flat else record.keys() - {"data", "metadata"}:
            self._new(schema, field, 1, _example(record[field]))

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
        for (version, field, kind), count in self.seen.items():
            yield (
                "sample",
                "seen",
                count,
                json.dumps({"form": version, "field": field, "type": kind}),
            )
        for (version, field), (count, example) in self.new.items():
            yield (
                "sample",
                "new",
                count,
                json.dumps({"form": version, "field": field, "example": example}),
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
