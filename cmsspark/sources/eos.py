"""EOS file accesses: JSON lines in three generations, told apart by the record itself (``docs/feeds.md``).

G1: ``data`` is one text ``key=value&…``. G2: a struct of texts, first with the prefix ``eos.``, later with ``eos_path``
and ``sec_…``; both also carry ``raw``. G3: typed numbers and names with literal dots.

Each form has a type of its own that refuses the marks of the others. A union of them would accept, of a number that is
written twice, a first one that its form forbids.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from cmsspark.access import AccessBatch, Remote
from cmsspark.sources import strict_json
from cmsspark.sources.decoder import JsonDecoder, Long, Metadata, parts_of
from cmsspark.sources.fields import Apps, normalise_lfn
from cmsspark.sources.strict_json import Fields, Malformed, last, long_text

SITE: Final = "T2_CH_CERN"

#: A number as its text plainly is; other spellings are read by the letter.
PlainText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{0,18}$")]
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


class EosDecoder(JsonDecoder):
    """Decodes EOS lines of all generations, mixed as they come. All are at CERN and none can be told remote."""

    stream = "eos"
    record_type = Typed

    def __init__(self, day: date, apps: Apps) -> None:
        super().__init__(day, apps)
        self._codes: dict[tuple[str | None, str | None], int] = {}
        #: The form that fitted last comes first.
        self._forms = [msgspec.json.Decoder(kind) for kind in (Typed, Flat, Prefixed, Text)]

    def decode_lines(self, chunk: bytes) -> list[Any]:
        """The records of a chunk that is of one form throughout."""
        return self._first_form(lambda form: _checked(form.decode_lines(chunk)))

    def decode_line(self, line: bytes) -> Any:
        """The record of a line, of the form that fits."""
        return self._first_form(lambda form: _checked([form.decode(line)]))[0]

    def _first_form(self, decode: Callable[[Any], list[Any]]) -> list[Any]:
        failed: Exception | None = None
        for place, form in enumerate(self._forms):
            try:
                records = decode(form)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                failed = error
                continue
            if place:
                self._forms.insert(0, self._forms.pop(place))
            return records
        raise failed or Malformed("no form fits")

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bins: out_of_day, write_only, no_lfn; all else are accesses. Raises Malformed before anything is counted
        for a record whose numbers are not written as its form writes them.
        """
        batch.read_bytes = [] if batch.read_bytes is None else batch.read_bytes
        add_lfn, add_group, add_bytes = batch.lfns.append, batch.groups.append, batch.read_bytes.append
        low, high, codes, generations = self.low_ms, self.high_ms, self._codes, batch.generations
        for record in records:
            data = record.data
            if data.__class__ is str:
                lfn, read, written, info, app = _parts(data)
            else:
                lfn, info, app = data.path, data.info, data.app
                # Texts are digits and floats of whole value: the record's type says so.
                read, written = int(data.rb or 0), int(data.wb or 0)
            form = record.form
            generations[form] = generations.get(form, 0) + 1
            metadata = record.metadata
            if metadata is not None:
                timestamp = metadata.timestamp
                if timestamp is not None and not low <= timestamp < high and self.out_of_day(timestamp, batch):
                    continue
            if not read and written:
                batch.write_only += 1
                continue
            if lfn and (lfn[:7] != "/store/" or "//" in lfn):
                lfn = normalise_lfn(lfn)
            if not lfn:
                batch.no_lfn += 1
                continue
            key = (info, app)
            group = codes.get(key)
            if group is None:
                group = self._number(key)
            add_lfn(lfn)
            add_group(group)
            add_bytes(read)

    def _number(self, key: tuple[str | None, str | None]) -> int:
        if len(self._codes) >= Apps.REMEMBERED:
            self._codes.clear()
        info, app = key
        number = self.coder.number(SITE, self.apps.classify(app), self.person(info), Remote.UNKNOWN)
        self._codes[key] = number
        return number

    def strict(self, fields: Fields) -> Any:
        """The record of a line read by the letter. Raises Malformed."""
        values, metadata = parts_of(fields)
        record: Any = None
        for value in values:
            if isinstance(value, dict):
                record = _judged(value, metadata)
            elif isinstance(value, str) and not isinstance(value, strict_json.Number):
                record = Text(strict_json.text(value, "data") or "", metadata)
            else:
                raise Malformed(f"data: an object or text is wanted, found {strict_json.kind_of(value)}")
        return record


def _checked(records: list[Any]) -> list[Any]:
    """The records, all of G2 with the marks of their form. Raises ValidationError for one without."""
    if records and records[0].__class__ is Flat:
        marks = (record.data.path is not msgspec.UNSET or record.data.raw is not msgspec.UNSET for record in records)
    elif records and records[0].__class__ is Prefixed:
        marks = (record.data.path is not msgspec.UNSET for record in records)
    else:
        return records
    if not all(marks):
        raise msgspec.ValidationError("a struct without the marks of its form")
    for record in records:
        if record.data.path is msgspec.UNSET:
            record.data.path = None
    return records


def _parts(text: str) -> tuple[str | None, int, int, str | None, str | None]:
    """The needed parts of G1's text. Not percent-decoded; of a repeated key the last value counts (rule 15)."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    get = dict(part.split("=", 1) for part in text.split("&") if "=" in part).get
    read, written = long_text(get("rb"), "data: rb"), long_text(get("wb"), "data: wb")
    return get("path"), read or 0, written or 0, get("sec.info"), get("sec.app")


def _judged(fields: Fields, metadata: Metadata | None) -> Judged:
    """A struct of any form, typed as that form wants it. Raises Malformed."""
    if any(key.startswith("eos.") for key in fields):
        form = "eos."
    elif "eos_path" in fields or "raw" in fields:
        form = "flat"
    else:
        form = "G3"
    path, rb, wb, info, app = _NAMES[form]
    number = strict_json.long if form == "G3" else long_text
    found = {name: last(fields, name, strict_json.text, "data.") for name in (path, info, app)}
    sizes = {name: last(fields, name, number, "data.") for name in (rb, wb)}
    data = TypedData(path=found[path], rb=sizes[rb], wb=sizes[wb], info=found[info], app=found[app])
    return Judged("G3" if form == "G3" else "G2", data, metadata)
