"""What the first records of files look like: fields that no schema names, and the types of those that are needed.

A sample costs little whatever the size of the input, and is told beside the count: as notes, which name fields, types
and lengths and never a text of the record.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from cmsspark.schemas import Column, input_table

#: Records of one file, of all files of a task, and of each so many records read, that are looked at.
OF_FILE: Final = 100
OF_TASK: Final = 200
ONE_IN: Final = 2000
#: Bytes at a file's begin in which they stand.
_HEAD: Final = 256 * 1024
#: New fields that a task tells of: a record may have any number of them.
_NEW_FIELDS: Final = 50
_SHOWN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")

#: A kind of row, what it is about, a count of records, and details as JSON.
Note = tuple[str, str, int, str]


@dataclass(frozen=True)
class Form:
    """What the schema of one form of a stream says: all names, and the fields that are needed."""

    name: str
    known: frozenset[str]
    needed: tuple[Column, ...]


@cache
def forms_of(stream: str, form: str) -> Mapping[str, Form]:
    """The forms of a stream's records by name, from ``schemas/inputs``; EOS has several in one file."""
    if stream != "eos":
        return {form: _form(form, input_table(f"{stream}/{form}").columns)}
    both = input_table("eos/g2").columns
    return {
        "G1": _form("G1", input_table("eos/g1").columns),
        "G2 eos.": _form("G2 eos.", [one for one in both if _in_both(one) or one.name.startswith("data.eos.")]),
        "G2": _form("G2", [one for one in both if _in_both(one) or not one.name.startswith("data.eos.")]),
        "G3": _form("G3", input_table("eos/g3").columns),
    }


def _in_both(column: Column) -> bool:
    return column.name.startswith("metadata.") or column.name in ("data.raw", "data.real_timestamp")


def needed_of(stream: str, form: str) -> tuple[Column, ...]:
    """The needed columns of a form, by the names that notes have."""
    # Notes of EOS name the form of a record, those of other streams the form of the day.
    return forms_of(stream, form)[form].needed


def _form(name: str, columns: Any) -> Form:
    return Form(name, frozenset(one.name for one in columns), tuple(one for one in columns if one.is_needed))


class Sampler:
    """Looks at the first records of the files that a task reads."""

    def __init__(self, stream: str, form: str) -> None:
        self._forms = forms_of(stream, form)
        self._form = form
        self._left = OF_TASK
        self._read = 0
        self._decode = msgspec.json.Decoder().decode
        #: (form, field, type) → records; the field is empty for the records themselves.
        self.seen: Counter[tuple[str, str, str]] = Counter()
        #: (form, field) → records and an example of the first.
        self.new: dict[tuple[str, str], tuple[int, str]] = {}

    def read(self, records: int) -> None:
        """So many records have been read: a larger input allows a larger sample."""
        more, self._read = divmod(self._read + records, ONE_IN)
        self._left += more

    def look(self, chunk: bytes) -> None:
        """Look at a file's first lines."""
        count = max(1, min(OF_FILE, self._left))
        head = chunk[:_HEAD]
        lines = head.split(b"\n", count)
        # The last piece is a line that may be cut, or the rest.
        for line in lines[:-1]:
            if line and not line.isspace():
                self._left -= 1
                self._line(line)

    def schema(self, fields: Mapping[str, Any], records: int) -> None:
        """Take the schema of an Avro file of so many records."""
        form = self._forms[self._form]
        self.seen[form.name, "", "records"] += records
        for column in form.needed:
            kind = _avro_type(fields[column.name]) if column.name in fields else ""
            self.seen[form.name, column.name, kind] += records
        for field in sorted(fields.keys() - form.known):
            self._new(form, field, records, f"of Avro type {_avro_type(fields[field])}")

    def _line(self, line: bytes) -> None:
        try:
            record = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        form, data = self._form_of(record.get("data"))
        if form is None:
            return
        metadata = record.get("metadata")
        self.seen[form.name, "", "records"] += 1
        self._fields(form, data, "" if form.name == "G1" else "data.")
        if isinstance(metadata, dict):
            if "timestamp" in metadata:
                self.seen[form.name, "metadata.timestamp", _kind(metadata["timestamp"])] += 1
            self._new_fields(form, metadata, "metadata.")
        for name in record.keys() - {"data", "metadata"}:
            self._new(form, name, 1, _example(record[name]))

    def _form_of(self, data: Any) -> tuple[Form | None, Mapping[str, Any]]:
        if "G1" not in self._forms:
            return (self._forms[self._form], data) if isinstance(data, dict) else (None, {})
        if isinstance(data, str):
            inner = data[1:-1] if len(data) > 1 and data[0] == data[-1] == '"' else data
            return self._forms["G1"], dict(part.split("=", 1) for part in inner.split("&") if "=" in part)
        if not isinstance(data, dict):
            return None, {}
        if any(key.startswith("eos.") for key in data):
            return self._forms["G2 eos."], data
        return self._forms["G2" if "eos_path" in data or "raw" in data else "G3"], data

    def _fields(self, form: Form, data: Mapping[str, Any], prefix: str) -> None:
        missing: Any = self
        for column in form.needed:
            if column.name.startswith("metadata."):
                continue
            value = data.get(column.name[len(prefix) :], missing)
            self.seen[form.name, column.name, "" if value is missing else _kind(value)] += 1
        self._new_fields(form, data, prefix)

    def _new_fields(self, form: Form, values: Mapping[str, Any], prefix: str) -> None:
        for name in values:
            if prefix + name not in form.known:
                self._new(form, prefix + name, 1, _example(values[name]))

    def _new(self, form: Form, field: str, records: int, example: str) -> None:
        shown = field if _SHOWN_NAME.fullmatch(field) else f"a name of {len(field)} characters"
        count, first = self.new.get((form.name, shown), (0, example))
        if count or len(self.new) < _NEW_FIELDS:
            self.new[form.name, shown] = (count + records, first)

    def notes(self) -> Iterator[Note]:
        """What was seen, for :mod:`cmsspark.runs.drift`."""
        for (form, field, kind), count in self.seen.items():
            yield "sample", "seen", count, json.dumps({"form": form, "field": field, "type": kind})
        for (form, field), (count, example) in self.new.items():
            yield "sample", "new", count, json.dumps({"form": form, "field": field, "example": example})


def _kind(value: Any) -> str:
    """The type of a JSON value, as far as the counting rules tell types apart."""
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
    """An example that holds no text: it might name a person, or be a secret."""
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
        return " or ".join(_avro_type(one) for one in kind if one != "null") or "null"
    if isinstance(kind, dict):
        return str(kind.get("logicalType") or kind.get("type"))
    return str(kind)
