"""CMSSW popularity reports: JSON lines, or the legacy Avro with upper-case names (``docs/feeds.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import msgspec

from cmsspark.base.access import AccessBatch, Remote
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict, as_is
from cmsspark.sources.formats.fast_avro import AvroFields, FastAvroReader
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, add_bytes, add_lfns, struct_fields
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.values import Long, avro_long, avro_text, long, text


class Data(msgspec.Struct, gc=False):
    """Needed fields of a report; sizes in bytes."""

    file_lfn: str | None = None
    read_bytes: Long | None = None
    read_bytes_at_close: Long | None = None
    site_name: str | None = None
    user_dn: str | None = None
    app_info: str | None = None


class ReportRecord(msgspec.Struct, gc=False):
    """A report; the legacy Avro has no metadata."""

    data: Data
    metadata: Metadata | None = None


_REQUIRED = RequiredFields("file_lfn", ("user_dn", "app_info", "site_name"), ("read_bytes_at_close", "read_bytes"))
_AVRO_REQUIRED = AvroFields("FILE_LFN", ("USER_DN", "APP_INFO", "SITE_NAME"), ("READ_BYTES_AT_CLOSE", "READ_BYTES"))


class CmsswDecoder(JsonDecoder):
    """Decodes CMSSW reports. The catalogue decides whether an access is remote."""

    stream = "cmssw"
    record_type = ReportRecord
    #: Needed fields of the legacy Avro, and the field that a file must have.
    avro_fields = tuple(name.upper() for name in Data.__struct_fields__)
    avro_required = "FILE_LFN"

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        super().__init__(day, apps, format_name)
        self._codes = MemoDict(self._number)
        self.use_fast_lines(_REQUIRED, lambda data: _REQUIRED, self._number)
        meanings = (self.user_names.__getitem__, self.apps.of.__getitem__, as_is)
        self.fast_avro = FastAvroReader(_AVRO_REQUIRED, meanings, self._number)

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day or no_lfn; all others are accesses."""
        of_the_day = self.of_the_day(records, batch)
        with_lfn = add_lfns(of_the_day, [data.file_lfn for data in of_the_day], batch)
        add_bytes([data.read_bytes_at_close or data.read_bytes or 0 for data in with_lfn], batch)
        apps = map(self.apps.of.__getitem__, [data.app_info for data in with_lfn])
        users = map(self.user_names.__getitem__, [data.user_dn for data in with_lfn])
        sites = [data.site_name for data in with_lfn]
        batch.groups += map(self._codes.__getitem__, zip(users, apps, sites, strict=True))

    def _number(self, key: tuple[Any, ...]) -> int:
        user, app, logged = key
        site = logged or UNKNOWN
        remote = Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA
        return self.coder.number(site, app, user, remote)

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """Return a legacy Avro record's needed fields as a record. Raises Malformed."""
        checks = {text: avro_text, long: avro_long}
        values: dict[str, Any] = {name: checks[check](row, name.upper()) for name, _, check in struct_fields(Data)}
        return ReportRecord(Data(**values))
