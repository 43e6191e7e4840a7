"""AAA (XRootD) accesses: JSON lines, raw or enriched with the sites of both ends (``docs/feeds.md``)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

import msgspec

from cmsspark.base.access import AccessBatch, Remote
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, add_bytes, add_lfns
from cmsspark.sources.formats.line_template import RequiredFields
from cmsspark.sources.values import Long


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
    """The sites of an enriched record: the source of the data (src) and the reader (dst)."""

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


_SITES = ("src_experiment_site", "dst_experiment_site")
_REQUIRED = RequiredFields("file_lfn", ("user_dn", "app_info"), ("read_bytes_at_close", "read_bytes"),
                           ("write_bytes", "write_bytes_at_close"))  # fmt: skip


class AaaDecoder(JsonDecoder):
    """Decodes AAA lines; ``format_name`` is ``enr`` or ``raw``. A raw record has no site, so
    that it is unknown whether it is remote.
    """

    stream = "aaa"

    def __init__(self, day: date, apps: Apps, format_name: str) -> None:
        self.enriched = format_name == "enr"
        self.record_type = EnrichedRecord if self.enriched else RawRecord
        super().__init__(day, apps, format_name)
        self._codes = MemoDict(self._number)
        required = _REQUIRED._replace(shared=_REQUIRED.shared + _SITES) if self.enriched else _REQUIRED
        self.use_fast_lines(required, lambda data: required, self._number)

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, write_only or no_lfn; all others are accesses."""
        of_the_day = self.of_the_day(records, batch)
        read = [
            data
            for data in of_the_day
            if data.read_bytes_at_close or data.read_bytes or not (data.write_bytes or data.write_bytes_at_close)
        ]
        batch.write_only += len(of_the_day) - len(read)
        with_lfn = add_lfns(read, [data.file_lfn for data in read], batch)
        add_bytes([data.read_bytes_at_close or data.read_bytes or 0 for data in with_lfn], batch)
        apps = map(self.apps.of.__getitem__, [data.app_info for data in with_lfn])
        users = map(self.user_names.__getitem__, [data.user_dn for data in with_lfn])
        keys: tuple[Iterable[str | None], ...] = (users, apps)
        if self.enriched:
            sites = [data.src_experiment_site for data in with_lfn]
            readers = [data.dst_experiment_site for data in with_lfn]
            keys = (users, apps, sites, readers)
        batch.groups += map(self._codes.__getitem__, zip(*keys, strict=True))

    def _number(self, key: tuple[Any, ...]) -> int:
        user, app, *sites = key
        source, reader = sites or (None, None)
        site = source or UNKNOWN
        if site == UNKNOWN:
            remote = Remote.UNKNOWN
        else:
            remote = Remote.YES if reader and reader not in (UNKNOWN, site) else Remote.NO
        return self.coder.number(site, app, user, remote, reader if reader != UNKNOWN and reader else None)
