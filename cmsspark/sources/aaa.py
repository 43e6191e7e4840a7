"""AAA (XRootD) accesses: JSON lines, raw or enriched with the sites of both ends (``docs/feeds.md``)."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec

from cmsspark.access import AccessBatch, Remote
from cmsspark.sources.decoder import JsonDecoder, Long, Metadata, objects, parts_of
from cmsspark.sources.fields import UNKNOWN, Apps, normalise_lfn
from cmsspark.sources.strict_json import Fields, last, long, text


class RawData(msgspec.Struct, gc=False):
    """Needed fields of a raw record; sizes in bytes."""

    file_lfn: str | None = None
    read_bytes: Long | None = None
    read_bytes_at_close: Long | None = None
    write_bytes: Long | None = None
    write_bytes_at_close: Long | None = None
    user_dn: str | None = None
    app_info: str | None = None


class EnrichedData(RawData, gc=False):
    """The enriched record's sites: where the data lie (src), and where they are read (dst)."""

    src_experiment_site: str | None = None
    dst_experiment_site: str | None = None


class RawRecord(msgspec.Struct, gc=False):
    """A line of the raw stream."""

    data: RawData
    metadata: Metadata | None = None


class EnrichedRecord(msgspec.Struct, gc=False):
    """A line of the enriched stream."""

    data: EnrichedData
    metadata: Metadata | None = None


_TEXTS = ("file_lfn", "user_dn", "app_info")
_LONGS = ("read_bytes", "read_bytes_at_close", "write_bytes", "write_bytes_at_close")
_SITES = ("src_experiment_site", "dst_experiment_site")


class AaaDecoder(JsonDecoder):
    """Decodes AAA lines; ``form`` is ``enr`` or ``raw``. A raw record has no site, and cannot be remote."""

    stream = "aaa"

    def __init__(self, day: date, apps: Apps, form: str) -> None:
        self.enriched = form == "enr"
        self.record_type = EnrichedRecord if self.enriched else RawRecord
        super().__init__(day, apps)
        self._codes: dict[tuple[str | None, ...], int] = {}

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bins: out_of_day, write_only, no_lfn; all else are accesses."""
        batch.read_bytes = [] if batch.read_bytes is None else batch.read_bytes
        add_lfn, add_group, add_bytes = batch.lfns.append, batch.groups.append, batch.read_bytes.append
        low, high, codes, enriched = self.low_ms, self.high_ms, self._codes, self.enriched
        classify = self.apps.classify
        for record in records:
            metadata = record.metadata
            if metadata is not None:
                timestamp = metadata.timestamp
                if timestamp is not None and not low <= timestamp < high and self.out_of_day(timestamp, batch):
                    continue
            data = record.data
            read = data.read_bytes_at_close or data.read_bytes or 0
            if read.__class__ is float:
                read = int(read)
            if not read and (data.write_bytes or data.write_bytes_at_close):
                batch.write_only += 1
                continue
            lfn = data.file_lfn
            if lfn and (lfn[:7] != "/store/" or "//" in lfn):
                lfn = normalise_lfn(lfn)
            if not lfn:
                batch.no_lfn += 1
                continue
            app = classify(data.app_info)
            if enriched:
                key = (data.src_experiment_site, data.dst_experiment_site, data.user_dn, app)
            else:
                key = (None, None, data.user_dn, app)
            group = codes.get(key)
            if group is None:
                group = codes[key] = self._number(key)
            add_lfn(lfn)
            add_group(group)
            add_bytes(read)

    def _number(self, key: tuple[str | None, ...]) -> int:
        source, reader, user_dn, app = key
        site = source or UNKNOWN
        if site == UNKNOWN:
            remote = Remote.UNKNOWN
        else:
            remote = Remote.YES if reader and reader not in (UNKNOWN, site) else Remote.NO
        return self.coder.number(site, app or UNKNOWN, self.person(user_dn), remote)

    def strict(self, fields: Fields) -> Any:
        """The record of a line read by the letter. Raises Malformed."""
        values, metadata = parts_of(fields)
        texts = _TEXTS + (_SITES if self.enriched else ())
        found: dict[str, Any] = {}
        for data in objects(values):
            found = {name: last(data, name, text, "data.") for name in texts}
            found |= {name: last(data, name, long, "data.") for name in _LONGS}
        if self.enriched:
            return EnrichedRecord(EnrichedData(**found), metadata)
        return RawRecord(RawData(**found), metadata)
