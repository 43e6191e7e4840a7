"""EOS file accesses: JSON lines in three generations, told apart by the record itself (``docs/feeds.md``).

G1: ``data`` is one text ``key=value&…``. G2: a struct of texts, first with the prefix ``eos.``, later with
``eos_path`` and ``sec_…``; both also carry ``raw``. G3: typed numbers and names with literal dots.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from cmsspark.access import AccessBatch, Remote
from cmsspark.sources import strict_json
from cmsspark.sources.decoder import JsonDecoder, Long, Metadata, parts_of
from cmsspark.sources.fields import Apps, normalise_lfn
from cmsspark.sources.strict_json import Fields, Malformed, last, long_text

SITE: Final = "T2_CH_CERN"


class Data(msgspec.Struct, gc=False):
    """Needed fields of all struct forms; sizes in bytes. Names that tell the form are unset where they are not there: a
    null one tells it, too.
    """

    path: str | None = None
    rb: Long | str | None = None
    wb: Long | str | None = None
    sec_info: str | None = msgspec.field(default=None, name="sec.info")
    sec_app: str | None = msgspec.field(default=None, name="sec.app")
    prefixed_path: str | UnsetType | None = msgspec.field(default=UNSET, name="eos.path")
    prefixed_rb: str | UnsetType | None = msgspec.field(default=UNSET, name="eos.rb")
    prefixed_wb: str | UnsetType | None = msgspec.field(default=UNSET, name="eos.wb")
    prefixed_info: str | UnsetType | None = msgspec.field(default=UNSET, name="eos.sec.info")
    prefixed_app: str | UnsetType | None = msgspec.field(default=UNSET, name="eos.sec.app")
    flat_path: str | UnsetType | None = msgspec.field(default=UNSET, name="eos_path")
    flat_info: str | None = msgspec.field(default=None, name="sec_info")
    flat_app: str | None = msgspec.field(default=None, name="sec_app")
    #: The whole G1 text again; only whether it is there matters, so it is not decoded.
    raw: msgspec.Raw | UnsetType = UNSET


class Record(msgspec.Struct, gc=False):
    """A line of the stream."""

    data: Data | str
    metadata: Metadata | None = None


#: form → its names of path, bytes read, bytes written, certificate and application
_NAMES: Final = {
    "G1": ("path", "rb", "wb", "sec.info", "sec.app"),
    "G2 eos.": ("eos.path", "eos.rb", "eos.wb", "eos.sec.info", "eos.sec.app"),
    "G2": ("eos_path", "rb", "wb", "sec_info", "sec_app"),
    "G3": ("path", "rb", "wb", "sec.info", "sec.app"),
}

#: path, bytes read, bytes written, certificate, application: what every form comes down to.
Access = tuple[str | None, int | None, int | None, str | None, str | None]


class EosDecoder(JsonDecoder):
    """Decodes EOS lines of all generations, mixed as they come. All are at CERN and none can be told remote."""

    stream = "eos"
    record_type = Record

    def __init__(self, day: date, apps: Apps) -> None:
        super().__init__(day, apps)
        self._codes: dict[tuple[str | None, str | None], int] = {}

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bins: out_of_day, write_only, no_lfn; all else are accesses. Raises Malformed before anything is counted
        for a record whose numbers are not written as its form writes them.
        """
        batch.read_bytes = [] if batch.read_bytes is None else batch.read_bytes
        add_lfn, add_group, add_bytes = batch.lfns.append, batch.groups.append, batch.read_bytes.append
        low, high, codes = self.low_ms, self.high_ms, self._codes
        generations = batch.generations
        for record in records:
            data = record.data
            if type(data) is Data:
                if data.flat_path is UNSET and data.prefixed_path is UNSET and data.raw is UNSET:
                    form, lfn, read, written, info, app = _g3(data)
                else:
                    form, lfn, read, written, info, app = _g2(data)
            else:
                form, (lfn, read, written, info, app) = "G1", _g1(data)
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
                if len(codes) >= Apps.REMEMBERED:
                    codes.clear()
                number = self.coder.number(SITE, self.apps.classify(app), self.person(info), Remote.UNKNOWN)
                group = codes[key] = number
            add_lfn(lfn)
            add_group(group)
            # A float is of whole value: the record's type says so.
            add_bytes(int(read or 0))

    def strict(self, fields: Fields) -> Any:
        """The record of a line read by the letter, put as G3 or as G1's text was. Raises Malformed."""
        values, metadata = parts_of(fields)
        data: Data | str = ""
        for value in values:
            if isinstance(value, dict):
                data = _strict_struct(value)
            elif isinstance(value, str) and not isinstance(value, strict_json.Number):
                data = strict_json.text(value, "data") or ""
            else:
                raise Malformed(f"data: an object or text is wanted, found {strict_json.kind_of(value)}")
        return Record(data, metadata)


def _g3(data: Data) -> tuple[str, str | None, Any, Any, str | None, str | None]:
    read, written = data.rb, data.wb
    if not (data.prefixed_rb is data.prefixed_wb is data.prefixed_app is data.prefixed_info is UNSET):
        return _g2(data)
    if type(read) is str or type(written) is str:
        raise Malformed("data.rb, data.wb: numbers are wanted, found text")
    return "G3", data.path, read, written, data.sec_info, data.sec_app


def _g2(data: Data) -> tuple[str, str | None, Any, Any, str | None, str | None]:
    prefixed = (data.prefixed_path, data.prefixed_rb, data.prefixed_wb, data.prefixed_info, data.prefixed_app)
    if any(value is not UNSET for value in prefixed):
        path, rb, wb, info, app = (None if value is UNSET else value for value in prefixed)
        return "G2", path, long_text(rb, "data.eos.rb"), long_text(wb, "data.eos.wb"), info, app
    if isinstance(data.rb, int | float) or isinstance(data.wb, int | float):
        raise Malformed("data.rb, data.wb: numbers as text are wanted, found numbers")
    read, written = long_text(data.rb, "data.rb"), long_text(data.wb, "data.wb")
    return "G2", None if data.flat_path is UNSET else data.flat_path, read, written, data.flat_info, data.flat_app


def _g1(text: str) -> Access:
    """The parts of G1's text. Not percent-decoded; of a repeated key the last value counts (rule 15)."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    parts = dict(part.split("=", 1) for part in text.split("&") if "=" in part)
    get = parts.get
    read, written = long_text(get("rb"), "data: rb"), long_text(get("wb"), "data: wb")
    return get("path"), read, written, get("sec.info"), get("sec.app")


def _strict_struct(fields: Fields) -> Data:
    """A struct of any form, typed as that form wants it. Raises Malformed."""
    if any(key.startswith("eos.") for key in fields):
        form = "G2 eos."
    elif "eos_path" in fields or "raw" in fields:
        form = "G2"
    else:
        form = "G3"
    path, rb, wb, info, app = _NAMES[form]
    number = strict_json.long if form == "G3" else long_text
    found = {name: last(fields, name, strict_json.text, "data.") for name in (path, info, app)}
    sizes = {name: last(fields, name, number, "data.") for name in (rb, wb)}
    # From here on the numbers are right: they go on as G3 carries them.
    return Data(path=found[path], rb=sizes[rb], wb=sizes[wb], sec_info=found[info], sec_app=found[app])
