"""EOS file accesses: JSON lines in three generations, told apart by the record itself (``docs/feeds.md``).

G1: ``data`` is one text ``key=value&…``. G2: a struct of texts, first with the prefix ``eos.``, later with ``eos_path``
and ``sec_…``; both also carry ``raw``. G3: typed numbers and names with literal dots.

Each form has a type of its own that refuses the marks of the others. A union of them would accept, of a number that is
written twice, a first one that its form forbids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any, ClassVar, Final, Literal

import msgspec

from cmsspark.access import AccessBatch, Remote
from cmsspark.schemas import Column, input_table
from cmsspark.sources.fields import Apps, Remembered
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, add_bytes, named, parts_of
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.sample import FormatVersions, RecordSchema
from cmsspark.sources.values import Long, Malformed, Number, PlainText, kind_of, long, long_text, text

SITE: Final = "T2_CH_CERN"

#: The type of a key that must not be there: no record holds this value.
Never = Literal["\0 no such value"] | msgspec.UnsetType


class _NotPrefixed(msgspec.Struct, gc=False):
    """Refuses the first form of G2."""

    not_path: Never = msgspec.field(default=msgspec.UNSET, name="eos.path")
    not_rb: Never = msgspec.field(default=msgspec.UNSET, name="eos.rb")
    not_wb: Never = msgspec.field(default=msgspec.UNSET, name="eos.wb")
    not_info: Never = msgspec.field(default=msgspec.UNSET, name="eos.sec.info")
    not_app: Never = msgspec.field(default=msgspec.UNSET, name="eos.sec.app")


class TypedData(_NotPrefixed, gc=False):
    """G3; sizes in bytes."""

    path: str | None = None
    rb: Long | None = None
    wb: Long | None = None
    info: str | None = msgspec.field(default=None, name="sec.info")
    app: str | None = msgspec.field(default=None, name="sec.app")
    not_flat: Never = msgspec.field(default=msgspec.UNSET, name="eos_path")
    not_raw: Never = msgspec.field(default=msgspec.UNSET, name="raw")


class FlatData(_NotPrefixed, gc=False):
    """The second form of G2; ``raw``, the whole G1 text again, is not decoded."""

    path: str | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="eos_path")
    rb: PlainText | None = None
    wb: PlainText | None = None
    info: str | None = msgspec.field(default=None, name="sec_info")
    app: str | None = msgspec.field(default=None, name="sec_app")
    raw: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class PrefixedData(msgspec.Struct, gc=False):
    """The first form of G2."""

    path: str | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="eos.path")
    rb: PlainText | None = msgspec.field(default=None, name="eos.rb")
    wb: PlainText | None = msgspec.field(default=None, name="eos.wb")
    info: str | None = msgspec.field(default=None, name="eos.sec.info")
    app: str | None = msgspec.field(default=None, name="eos.sec.app")


class Typed(msgspec.Struct, gc=False):
    """A G3 line."""

    form: ClassVar[str] = "G3"
    data: TypedData
    metadata: Metadata | None = None


class Flat(msgspec.Struct, gc=False):
    """A line of the second form of G2."""

    form: ClassVar[str] = "G2"
    data: FlatData
    metadata: Metadata | None = None


class Prefixed(msgspec.Struct, gc=False):
    """A line of the first form of G2."""

    form: ClassVar[str] = "G2"
    data: PrefixedData
    metadata: Metadata | None = None


class Text(msgspec.Struct, gc=False):
    """A G1 line."""

    form: ClassVar[str] = "G1"
    data: str
    metadata: Metadata | None = None


class Judged(msgspec.Struct, gc=False):
    """A struct that was read by the letter, whatever its form."""

    form: str
    data: TypedData
    metadata: Metadata | None = None


#: form → its names of path, bytes read, bytes written, certificate and application
_NAMES: Final = {
    "eos.": ("eos.path", "eos.rb", "eos.wb", "eos.sec.info", "eos.sec.app"),
    "flat": ("eos_path", "rb", "wb", "sec_info", "sec_app"),
    "G3": ("path", "rb", "wb", "sec.info", "sec.app"),
}
_REQUIRED: Final = {
    form: RequiredFields(path, (info, app), (rb,), (wb,), form != "G3", "G3" if form == "G3" else "G2")
    for form, (path, rb, wb, info, app) in _NAMES.items()
}


def _required_of(data: Mapping[str, Any]) -> RequiredFields | None:
    """The required fields of a struct whose format version its keys tell beyond doubt."""
    prefixed = "eos.path" in data
    if prefixed != any(key.startswith("eos.") for key in data):
        return None
    if prefixed:
        return _REQUIRED["eos."]
    return _REQUIRED["flat" if "eos_path" in data or "raw" in data else "G3"]


class EosDecoder(JsonDecoder):
    """Decodes EOS lines of all generations, mixed as they come. All are at CERN and none can be told remote."""

    stream = "eos"
    record_type = Typed

    def __init__(self, day: date, apps: Apps, format_name: str = "eos") -> None:
        super().__init__(day, apps, format_name)
        self._codes = Remembered(self._number)
        self.use_fast_lines(_REQUIRED["G3"], _required_of, self._number)
        #: The form that fitted last comes first.
        self._forms = [msgspec.json.Decoder(kind) for kind in (Typed, Flat, Prefixed, Text)]

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """The versions that stand in one file: G1, G3, and both forms of G2."""
        g2 = input_table("eos/g2").columns
        schemas = (
            RecordSchema.of("G1", input_table("eos/g1").columns, prefix=""),
            RecordSchema.of("G2 eos.", (one for one in g2 if _is_shared(one) or one.name.startswith("data.eos."))),
            RecordSchema.of("G2", (one for one in g2 if _is_shared(one) or not one.name.startswith("data.eos."))),
            RecordSchema.of("G3", input_table("eos/g3").columns),
        )
        return FormatVersions({schema.name: schema for schema in schemas}, _version_of)

    def decode_lines(self, lines: Content) -> list[Any]:
        """The records of lines that are of the form that fitted last. Raises what msgspec raises."""
        return _checked(self._forms[0].decode_lines(lines))

    def decode_line(self, line: bytes) -> Any:
        """The record of one line, of the form that fits. Raises what msgspec raises."""
        failed: Exception | None = None
        for place, form in enumerate(self._forms):
            try:
                (record,) = _checked([form.decode(line)])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                failed = error
                continue
            if place:
                self._forms.insert(0, self._forms.pop(place))
            return record
        raise failed or Malformed("no form fits")

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bins: out_of_day, write_only, no_lfn; all else are accesses."""
        for form, count in Counter(record.form for record in records).items():
            batch.generations[form] = batch.generations.get(form, 0) + count
        of_the_day = self.of_the_day(records, batch)
        read = [data for data in of_the_day if data.rb or not data.wb]
        batch.write_only += len(of_the_day) - len(read)
        found = named(read, [data.path for data in read], batch)
        add_bytes([data.rb or 0 for data in found], batch)
        apps = map(self.apps.of.__getitem__, [data.app for data in found])
        people = map(self.person.__getitem__, [data.info for data in found])
        batch.groups += map(self._codes.__getitem__, zip(people, apps, strict=True))

    def _number(self, key: tuple[Any, ...]) -> int:
        user, app = key
        return self.coder.number(SITE, app, user, Remote.UNKNOWN)

    def strict(self, fields: Fields) -> Any:
        """The record of a line read by the letter. Raises Malformed."""
        values, metadata = parts_of(fields)
        record: Any = None
        for value in values:
            if isinstance(value, dict):
                record = _judged(value, metadata)
            elif isinstance(value, str) and not isinstance(value, Number):
                record = Text(text(value, "data") or "", metadata)
            else:
                raise Malformed(f"data: an object or text is wanted, found {kind_of(value)}")
        # Of several texts the last one's parts count, as msgspec keeps it.
        return _judged_text(record.data, metadata) if isinstance(record, Text) else record


def _is_shared(column: Column) -> bool:
    """Whether both forms of G2 have the column."""
    return column.name.startswith("metadata.") or column.name in ("data.raw", "data.real_timestamp")


def _version_of(data: Any) -> tuple[str, Mapping[str, Any]] | None:
    """The version of a record and its fields, by its ``data``."""
    if isinstance(data, str):
        inner = data[1:-1] if len(data) > 1 and data[0] == data[-1] == '"' else data
        return "G1", dict(part.split("=", 1) for part in inner.split("&") if "=" in part)
    if not isinstance(data, dict):
        return None
    if any(key.startswith("eos.") for key in data):
        return "G2 eos.", data
    return "G2" if "eos_path" in data or "raw" in data else "G3", data


def _checked(records: list[Any]) -> list[Any]:
    """The records of one form, numbers instead of texts. Raises ValidationError for one of G2 without the marks of its
    form, and for one of G1 with an ill number.
    """
    form = records[0].__class__ if records else Typed
    if form is Typed:
        return records
    if form is Text:
        return [_in_parts(record, number) for number, record in enumerate(records)]
    for number, record in enumerate(records):
        data = record.data
        if data.path is msgspec.UNSET:
            if form is Prefixed or data.raw is msgspec.UNSET:
                raise _refused("a struct without the marks of its form", number)
            data.path = None
        # The type has let pass digits only.
        data.rb, data.wb = int(data.rb or 0), int(data.wb or 0)
    return records


def _in_parts(record: Text, number: int) -> Judged:
    try:
        return _judged_text(record.data, record.metadata)
    except Malformed as error:
        raise _refused(str(error), number) from None


def _refused(why: str, number: int) -> msgspec.ValidationError:
    """As msgspec tells which of several records it refuses."""
    return msgspec.ValidationError(f"{why} - at `$[{number}]`")


def _judged_text(text: str, metadata: Metadata | None) -> Judged:
    """G1's text. Not percent-decoded; of a repeated key the last value counts (rule 15). Raises Malformed."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    get = dict(part.split("=", 1) for part in text.split("&") if "=" in part).get
    read, written = long_text(get("rb"), "data: rb"), long_text(get("wb"), "data: wb")
    data = TypedData(path=get("path"), rb=read, wb=written, info=get("sec.info"), app=get("sec.app"))
    return Judged("G1", data, metadata)


def _judged(fields: Fields, metadata: Metadata | None) -> Judged:
    """A struct of any form, typed as that form wants it. Raises Malformed."""
    if any(key.startswith("eos.") for key in fields):
        form = "eos."
    elif "eos_path" in fields or "raw" in fields:
        form = "flat"
    else:
        form = "G3"
    path, rb, wb, info, app = _NAMES[form]
    number = long if form == "G3" else long_text
    found = {name: last(fields, name, text, "data.") for name in (path, info, app)}
    sizes = {name: last(fields, name, number, "data.") for name in (rb, wb)}
    data = TypedData(path=found[path], rb=sizes[rb], wb=sizes[wb], info=found[info], app=found[app])
    return Judged("G3" if form == "G3" else "G2", data, metadata)
