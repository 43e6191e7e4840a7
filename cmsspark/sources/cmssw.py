"""CMSSW popularity reports: JSON lines, or the legacy Avro with upper-case names (``docs/feeds.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import msgspec

from cmsspark.access import AccessBatch, Remote
from cmsspark.sources.avro import avro_long, avro_text
from cmsspark.sources.decoder import JsonDecoder, Long, Metadata, objects, parts_of
from cmsspark.sources.fields import UNKNOWN, Apps, normalise_lfn
from cmsspark.sources.strict_json import Fields, last, long, text


class Data(msgspec.Struct, gc=False):
    """Needed fields of a report; sizes in bytes."""

    file_lfn: str | None = None
    read_bytes: Long | None = None
    read_bytes_at_close: Long | None = None
    site_name: str | None = None
    user_dn: str | None = None
    app_info: str | None = None


class Record(msgspec.Struct, gc=False):
    """A report; the legacy Avro has no metadata."""

    data: Data
    metadata: Metadata | None = None


_TEXTS = ("file_lfn", "site_name", "user_dn", "app_info")
_LONGS = ("read_bytes", "read_bytes_at_close")


class CmsswDecoder(JsonDecoder):
    """Decodes CMSSW reports. Whether an access was remote is for the catalogue to say."""

    stream = "cmssw"
    record_type = Record
    #: Needed fields of the legacy Avro, and which of them a file cannot lack.
    avro_fields = tuple(name.upper() for name in (*_TEXTS, *_LONGS))
    avro_required = "FILE_LFN"

    def __init__(self, day: date, apps: Apps) -> None:
        super().__init__(day, apps)
        self._codes: dict[tuple[str | None, ...], int] = {}

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bins: out_of_day and no_lfn; all else are accesses."""
        batch.read_bytes = [] if batch.read_bytes is None else batch.read_bytes
        add_lfn, add_group, add_bytes = batch.lfns.append, batch.groups.append, batch.read_bytes.append
        low, high, codes, classify = self.low_ms, self.high_ms, self._codes, self.apps.classify
        for record in records:
            metadata = record.metadata
            if metadata is not None:
                timestamp = metadata.timestamp
                if timestamp is not None and not low <= timestamp < high and self.out_of_day(timestamp, batch):
                    continue
            data = record.data
            lfn = data.file_lfn
            if lfn and (lfn[:7] != "/store/" or "//" in lfn):
                lfn = normalise_lfn(lfn)
            if not lfn:
                batch.no_lfn += 1
                continue
            key = (data.site_name, data.user_dn, classify(data.app_info))
            group = codes.get(key)
            if group is None:
                group = codes[key] = self._number(key)
            add_lfn(lfn)
            add_group(group)
            read = data.read_bytes_at_close or data.read_bytes or 0
            add_bytes(int(read) if read.__class__ is float else read)

    def _number(self, key: tuple[str | None, ...]) -> int:
        site = key[0] or UNKNOWN
        remote = Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA
        return self.coder.number(site, key[2] or UNKNOWN, self.person(key[1]), remote)

    def strict(self, fields: Fields) -> Any:
        """The record of a line read by the letter. Raises Malformed."""
        values, metadata = parts_of(fields)
        found: dict[str, Any] = {}
        for data in objects(values):
            found = {name: last(data, name, text, "data.") for name in _TEXTS}
            found |= {name: last(data, name, long, "data.") for name in _LONGS}
        return Record(Data(**found), metadata)

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        """A legacy Avro record's needed fields as a record. Raises Malformed."""
        found: dict[str, Any] = {name: avro_text(row, name.upper()) for name in _TEXTS}
        found |= {name: avro_long(row, name.upper()) for name in _LONGS}
        return Record(Data(**found))
