"""XCache's own records: one for each file that is closed at a cache (rule 48). These are not accesses."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import msgspec

from cmsspark.base.access import AccessBatch
from cmsspark.sources.fields import UNKNOWN, Apps
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, objects, parts_of
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.values import Malformed, long, text

#: The name of the feed in ``etc/sources.yaml``.
FEED: Final = "xcache"
_TEXTS: Final = ("file_path", "server_hostname", "site")
_LONGS: Final = (
    *("size", "access_count", "bytes_hit_cache", "bytes_miss_cache", "bytes_bypass_cache", "bytes_to_disk"),
    "bytes_by_prefetch",
)


@dataclass
class CacheSums:
    """The records of one site: distinct servers and files, and sums in bytes. Null counts as 0."""

    closes: int = 0
    accesses: int = 0
    hit_bytes: int = 0
    missed_bytes: int = 0
    bypass_bytes: int = 0
    disk_bytes: int = 0
    prefetch_bytes: int = 0
    servers: set[str] = field(default_factory=set)
    #: The largest size of each file that was closed.
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheRecord:
    """A line: its needed fields by name."""

    data: dict[str, Any]
    metadata: Metadata | None


class CacheDecoder(JsonDecoder):
    """Decodes XCache's lines into ``sites``; its batches have bins only.

    The feed is small, so that each line is parsed alone.
    """

    stream = FEED
    record_type = CacheRecord

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        super().__init__(day, apps, format_name)
        self.sites: dict[str, CacheSums] = {}

    def decode_lines(self, lines: Content) -> list[Any]:
        """Leave all lines to the strict parser. Raises msgspec.ValidationError."""
        raise msgspec.ValidationError

    def decode_line(self, line: bytes) -> Any:
        """Leave the line to the strict parser. Raises msgspec.ValidationError."""
        raise msgspec.ValidationError

    def strict(self, fields: Fields) -> Any:
        """Return the record of a parsed line, whose fields are in ``data`` or beside ``metadata``. Raises Malformed."""
        if "data" not in fields and "file_path" not in fields:
            raise Malformed("neither data nor file_path is there")
        values, metadata = parts_of(fields if "data" in fields else {**fields, "data": [fields]})
        texts: dict[str, Any] = {}
        for data in objects(values):
            texts = {name: last(data, name, text, "") for name in _TEXTS}
            texts |= {name: last(data, name, long, "") for name in _LONGS}
        return CacheRecord(texts, metadata)

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day; all others are added to the sums of their site."""
        for data in self.of_the_day(records, batch):
            site = data["site"]
            name = site if site and site.lower() != UNKNOWN else UNKNOWN
            sums = self.sites.setdefault(name, CacheSums())
            sums.closes += 1
            sums.accesses += data["access_count"] or 0
            sums.hit_bytes += data["bytes_hit_cache"] or 0
            sums.missed_bytes += data["bytes_miss_cache"] or 0
            sums.bypass_bytes += data["bytes_bypass_cache"] or 0
            sums.disk_bytes += data["bytes_to_disk"] or 0
            sums.prefetch_bytes += data["bytes_by_prefetch"] or 0
            if data["server_hostname"]:
                sums.servers.add(data["server_hostname"])
            if path := data["file_path"]:
                sums.sizes[path] = max(sums.sizes.get(path, 0), data["size"] or 0)
