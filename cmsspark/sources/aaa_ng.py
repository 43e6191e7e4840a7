"""Today's AAA: one record for each file close, by the OSG collectors of XRootD (rules 41 to 47, ``docs/feeds.md``).

The needed fields are in ``data``, or beside ``metadata`` in the record itself. The site is that of the server. Sites of
both ends are only compared with each other, as their names are those of another catalogue of sites.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final, Literal

import msgspec

from cmsspark.base.access import AccessBatch, Remote
from cmsspark.base.schemas import input_table
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict, as_is
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.fast_keys import AccessKeys, Ends, fast_access_lines
from cmsspark.sources.formats.json_lines import (
    JsonDecoder,
    Metadata,
    add_bytes,
    add_lfns,
    check_fields,
    objects,
    parts_of,
)
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, RecordSchema
from cmsspark.sources.values import Long, Malformed

#: The name that a collector writes for a file whose open it has not seen: no name (rule 43).
NO_NAMES: Final = ("unknown", "missing directory")
#: The begin of a status that says that a site was found.
_RESOLVED: Final = "resolved"

_TEXTS: Final = {
    "lfn": "file_lfn",
    "user": "user_dn",
    "workflow": "CRAB_Workflow",
    "site": "site_name",
    "server": "server_site",
    "source": "src_site",
    "target": "dst_site",
    "source_status": "src_site_status",
    "target_status": "dst_site_status",
}
_LONGS: Final = ("read_bytes", "write_bytes", "write_bytes_at_close")
_RENAMED: Final = {"lfn": "file_lfn", **{name: key for name, key in _TEXTS.items() if name != "lfn"}}


class CloseData(msgspec.Struct, gc=False, rename=_RENAMED):
    """Needed fields in ``data``; sizes in bytes."""

    lfn: str | None = None
    user: str | None = None
    workflow: str | None = None
    site: str | None = None
    server: str | None = None
    source: str | None = None
    target: str | None = None
    source_status: str | None = None
    target_status: str | None = None
    read_bytes: Long | None = None
    write_bytes: Long | None = None
    write_bytes_at_close: Long | None = None


class CloseRecord(msgspec.Struct, gc=False):
    """A line whose fields are in ``data``."""

    data: CloseData
    metadata: Metadata | None = None


class FlatCloseRecord(msgspec.Struct, gc=False, rename={**_RENAMED, "no_data": "data"}):
    """A line whose fields are beside ``metadata``. It must have the key ``file_lfn`` and none named ``data``."""

    lfn: str | None
    user: str | None = None
    workflow: str | None = None
    site: str | None = None
    server: str | None = None
    source: str | None = None
    target: str | None = None
    source_status: str | None = None
    target_status: str | None = None
    read_bytes: Long | None = None
    write_bytes: Long | None = None
    write_bytes_at_close: Long | None = None
    metadata: Metadata | None = None
    no_data: Literal["\0 no such value"] | msgspec.UnsetType = msgspec.UNSET

    @property
    def data(self) -> FlatCloseRecord:
        """The record itself, which has the fields."""
        return self


class AaaNgDecoder(JsonDecoder):
    """Decodes lines of the stream ``aaa`` in its third format, of either form."""

    stream = "aaa"
    record_type = FlatCloseRecord

    def __init__(self, day: date, apps: Apps, format_name: str = "aaa-ng") -> None:
        super().__init__(day, apps, format_name)
        self._codes = MemoDict(self._number)
        #: The decoder that last succeeded comes first.
        self._decoders = [msgspec.json.Decoder(kind) for kind in (FlatCloseRecord, CloseRecord)]
        meanings = (
            self.user_names.__getitem__, self.apps.of.__getitem__, as_is, as_is, as_is, as_is, is_resolved, is_resolved
        )  # fmt: skip
        ends = Ends("site_name", "server_site", "src_site", "dst_site", "src_site_status", "dst_site_status")
        keys = AccessKeys("file_lfn", tuple(_TEXTS.values())[1:], ends, _LONGS[:1], _LONGS[1:], NO_NAMES)
        self._fast_lines = fast_access_lines(self.day_number, keys, meanings, self._number)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return one version; its fields are in ``data`` or in the record itself."""
        schema = RecordSchema.of("aaa-ng", input_table("aaa/aaa-ng").columns)
        return FormatVersions(
            {schema.name: schema},
            lambda data: (schema.name, data) if isinstance(data, dict) else None,
            is_flat=lambda record: "data" not in record and "file_lfn" in record,
        )

    def decode_lines(self, lines: Content) -> list[Any]:
        """Return the records of lines in the form that last succeeded. Raises msgspec's errors."""
        records: list[Any] = self._decoders[0].decode_lines(lines)
        return records

    def decode_line(self, line: bytes) -> Any:
        """Return the record of one line in either form. Raises msgspec's errors."""
        try:
            return self._decoders[0].decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            record = self._decoders[1].decode(line)
            self._decoders.reverse()
            return record

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, write_only or no_lfn; all others are accesses."""
        of_the_day = self.of_the_day(records, batch)
        read = [data for data in of_the_day if data.read_bytes or not (data.write_bytes or data.write_bytes_at_close)]
        batch.write_only += len(of_the_day) - len(read)
        with_lfn = add_lfns(read, [None if data.lfn in NO_NAMES else data.lfn for data in read], batch)
        add_bytes([data.read_bytes or 0 for data in with_lfn], batch)
        batch.groups += [
            self._codes[
                self.user_names[data.user],
                self.apps.of[data.workflow],
                data.site,
                data.server,
                data.source,
                data.target,
                is_resolved(data.source_status),
                is_resolved(data.target_status),
            ]
            for data in with_lfn
        ]

    def _number(self, key: tuple[Any, ...]) -> int:
        user, app, logged, server, source, target, *resolved = key
        site = next((name for name in (logged, server) if name and name.lower() != UNKNOWN), UNKNOWN)
        if site == UNKNOWN or not (source and target and all(resolved)):
            remote = Remote.UNKNOWN
        else:
            remote = Remote.YES if source != target else Remote.NO
        # The sites of both ends have other names than the server (rule 44): only a reader at the server has the same.
        return self.coder.number(site, app, user, remote, site if remote == Remote.NO else None)

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        if "data" not in fields:
            if "file_lfn" not in fields:
                raise Malformed("neither data nor file_lfn is there")
            values, metadata = parts_of({**fields, "data": [fields]})
        else:
            values, metadata = parts_of(fields)
        values_of: dict[str, Any] = {}
        for data in objects(values):
            values_of = check_fields(CloseData, data, "")
        return CloseRecord(CloseData(**values_of), metadata)


def is_resolved(status: str | None) -> Any:
    """Return whether a site with this status counts: null, empty, or a text that begins with ``resolved`` (rule 45)."""
    return not status or status.startswith(_RESOLVED)
