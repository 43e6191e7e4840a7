"""EOS file accesses: JSON lines in three format versions, which each record identifies (``docs/feeds.md``).

G1: ``data`` is one text ``key=value&…``. G2: a struct of texts, first with the prefix ``eos.``, later with ``eos_path``
and ``sec_…``; both also carry ``raw``. G3: typed numbers and names with literal dots.

Each layout has its own type that rejects the keys which mark the others. A union type would accept a repeated number
whose first value its layout forbids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any, ClassVar, Final, Literal

import msgspec

from cmsspark.base.access import AccessBatch, Remote
from cmsspark.base.schemas import Column, input_table
from cmsspark.sources.fields import Apps, MemoDict
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import (
    JsonDecoder,
    Metadata,
    add_bytes,
    add_lfns,
    check_fields,
    parts_of,
    struct_fields,
)
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, RecordSchema
from cmsspark.sources.values import Long, Malformed, Number, PlainText, kind_of, long_text, text

SITE: Final = "T2_CH_CERN"

#: The type of a key that must be absent: no record has this value.
Never = Literal["\0 no such value"] | msgspec.UnsetType


class _NotPrefixed(msgspec.Struct, gc=False):
    """Rejects the first layout of G2."""

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
    """The second layout of G2; ``raw``, the whole G1 text again, is not decoded."""

    path: str | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="eos_path")
    rb: PlainText | None = None
    wb: PlainText | None = None
    info: str | None = msgspec.field(default=None, name="sec_info")
    app: str | None = msgspec.field(default=None, name="sec_app")
    raw: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class PrefixedData(msgspec.Struct, gc=False):
    """The first layout of G2."""

    path: str | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="eos.path")
    rb: PlainText | None = msgspec.field(default=None, name="eos.rb")
    wb: PlainText | None = msgspec.field(default=None, name="eos.wb")
    info: str | None = msgspec.field(default=None, name="eos.sec.info")
    app: str | None = msgspec.field(default=None, name="eos.sec.app")


class Typed(msgspec.Struct, gc=False):
    """A G3 line."""

    format_version: ClassVar[str] = "G3"
    data: TypedData
    metadata: Metadata | None = None


class Flat(msgspec.Struct, gc=False):
    """A line of the second layout of G2."""

    format_version: ClassVar[str] = "G2"
    data: FlatData
    metadata: Metadata | None = None


class Prefixed(msgspec.Struct, gc=False):
    """A line of the first layout of G2."""

    format_version: ClassVar[str] = "G2"
    data: PrefixedData
    metadata: Metadata | None = None


class Text(msgspec.Struct, gc=False):
    """A G1 line."""

    format_version: ClassVar[str] = "G1"
    data: str
    metadata: Metadata | None = None


class StrictRecord(msgspec.Struct, gc=False):
    """A strictly parsed record of any layout."""

    format_version: str
    data: TypedData
    metadata: Metadata | None = None


#: The type of ``data`` in each layout, and the required fields.
_LAYOUTS: Final[Mapping[str, type[msgspec.Struct]]] = {"eos.": PrefixedData, "flat": FlatData, "G3": TypedData}


def _require(layout: str) -> RequiredFields:
    keys = {name: key for name, key, _ in struct_fields(_LAYOUTS[layout])}
    version = "G3" if layout == "G3" else "G2"
    shared = (keys["info"], keys["app"])
    return RequiredFields(keys["path"], shared, (keys["rb"],), (keys["wb"],), layout != "G3", version)


_REQUIRED: Final = {layout: _require(layout) for layout in _LAYOUTS}
_REQUIRED_OF_TEXT: Final = RequiredFields("path", ("sec.info", "sec.app"), ("rb",), ("wb",), True, "G1", True)


def _required_of(data: Mapping[str, Any] | str) -> RequiredFields | None:
    """Return the required fields of a record; None where the keys of its ``data`` do not identify the format version.
    """
    if isinstance(data, str):
        return _REQUIRED_OF_TEXT
    prefixed = "eos.path" in data
    if prefixed != any(key.startswith("eos.") for key in data):
        return None
    if prefixed:
        return _REQUIRED["eos."]
    return _REQUIRED["flat" if "eos_path" in data or "raw" in data else "G3"]


class EosDecoder(JsonDecoder):
    """Decodes EOS lines of all format versions in any mix. All accesses are at CERN; whether they are remote is
    unknown.
    """

    stream = "eos"
    record_type = Typed

    def __init__(self, day: date, apps: Apps, format_name: str = "eos") -> None:
        super().__init__(day, apps, format_name)
        self._codes = MemoDict(self._number)
        self.use_fast_lines(_REQUIRED["G3"], _required_of, self._number)
        #: The decoder that last succeeded comes first.
        self._decoders = [msgspec.json.Decoder(kind) for kind in (Typed, Flat, Prefixed, Text)]

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return the versions that may be in one file: G1, G3, and both layouts of G2."""
        g2 = input_table("eos/g2").columns
        schemas = (
            RecordSchema.of("G1", input_table("eos/g1").columns, prefix=""),
            RecordSchema.of(
                "G2 eos.", (column for column in g2 if _is_shared(column) or column.name.startswith("data.eos."))
            ),
            RecordSchema.of(
                "G2", (column for column in g2 if _is_shared(column) or not column.name.startswith("data.eos."))
            ),
            RecordSchema.of("G3", input_table("eos/g3").columns),
        )
        return FormatVersions({schema.name: schema for schema in schemas}, _find_version)

    def decode_lines(self, lines: Content) -> list[Any]:
        """Return the records of lines in the layout that last succeeded. Raises msgspec's errors."""
        return _checked(self._decoders[0].decode_lines(lines))

    def decode_line(self, line: bytes) -> Any:
        """Return the record of one line in any layout. Raises msgspec's errors."""
        failed: Exception | None = None
        for position, decoder in enumerate(self._decoders):
            try:
                (record,) = _checked([decoder.decode(line)])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                failed = error
                continue
            if position:
                self._decoders.insert(0, self._decoders.pop(position))
            return record
        raise failed or Malformed("no layout matches")

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, write_only or no_lfn; all others are accesses."""
        for version, count in Counter(record.format_version for record in records).items():
            batch.generations[version] = batch.generations.get(version, 0) + count
        of_the_day = self.of_the_day(records, batch)
        read = [data for data in of_the_day if data.rb or not data.wb]
        batch.write_only += len(of_the_day) - len(read)
        with_lfn = add_lfns(read, [data.path for data in read], batch)
        add_bytes([data.rb or 0 for data in with_lfn], batch)
        apps = map(self.apps.of.__getitem__, [data.app for data in with_lfn])
        users = map(self.user_names.__getitem__, [data.info for data in with_lfn])
        batch.groups += map(self._codes.__getitem__, zip(users, apps, strict=True))

    def _number(self, key: tuple[Any, ...]) -> int:
        user, app = key
        return self.coder.number(SITE, app, user, Remote.UNKNOWN)

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = parts_of(fields)
        record: Any = None
        for value in values:
            if isinstance(value, dict):
                record = _strict_struct(value, metadata)
            elif isinstance(value, str) and not isinstance(value, Number):
                record = Text(text(value, "data") or "", metadata)
            else:
                raise Malformed(f"data: expected an object or text, found {kind_of(value)}")
        # Of repeated texts the last one counts, as in msgspec.
        return _strict_text(record.data, metadata) if isinstance(record, Text) else record


def _is_shared(column: Column) -> bool:
    """Return whether both layouts of G2 have the column."""
    return column.name.startswith("metadata.") or column.name in ("data.raw", "data.real_timestamp")


def _find_version(data: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return the version of a record and its fields, by its ``data``."""
    if isinstance(data, str):
        inner = data[1:-1] if len(data) > 1 and data[0] == data[-1] == '"' else data
        return "G1", dict(part.split("=", 1) for part in inner.split("&") if "=" in part)
    if not isinstance(data, dict):
        return None
    if any(key.startswith("eos.") for key in data):
        return "G2 eos.", data
    return "G2" if "eos_path" in data or "raw" in data else "G3", data


def _checked(records: list[Any]) -> list[Any]:
    """Records of one layout, with texts of numbers converted. Raises ValidationError for a G2 record without the keys
    of its layout, and for a G1 record with an invalid number.
    """
    kind = records[0].__class__ if records else Typed
    if kind is Typed:
        return records
    if kind is Text:
        return [_in_parts(record, number) for number, record in enumerate(records)]
    for number, record in enumerate(records):
        data = record.data
        if data.path is msgspec.UNSET:
            if kind is Prefixed or data.raw is msgspec.UNSET:
                raise _refused("a struct without the keys of its layout", number)
            data.path = None
        # The type accepts digits only.
        data.rb, data.wb = int(data.rb or 0), int(data.wb or 0)
    return records


def _in_parts(record: Text, number: int) -> StrictRecord:
    try:
        return _strict_text(record.data, record.metadata)
    except Malformed as error:
        raise _refused(str(error), number) from None


def _refused(reason: str, number: int) -> msgspec.ValidationError:
    """Return the error in msgspec's format, which contains the number of the rejected record."""
    return msgspec.ValidationError(f"{reason} - at `$[{number}]`")


def _strict_text(text: str, metadata: Metadata | None) -> StrictRecord:
    """G1's text. Not percent-decoded; of a repeated key the last value counts (rule 15). Raises Malformed."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    get = dict(part.split("=", 1) for part in text.split("&") if "=" in part).get
    read, written = long_text(get("rb"), "data: rb"), long_text(get("wb"), "data: wb")
    data = TypedData(path=get("path"), rb=read, wb=written, info=get("sec.info"), app=get("sec.app"))
    return StrictRecord("G1", data, metadata)


def _strict_struct(fields: Fields, metadata: Metadata | None) -> StrictRecord:
    """Return a struct of any layout, checked by the types of that layout. Raises Malformed."""
    if any(key.startswith("eos.") for key in fields):
        layout = "eos."
    elif "eos_path" in fields or "raw" in fields:
        layout = "flat"
    else:
        layout = "G3"
    data = TypedData(**check_fields(_LAYOUTS[layout], fields))
    return StrictRecord("G3" if layout == "G3" else "G2", data, metadata)
