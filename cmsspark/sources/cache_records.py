"""XCache's own records: one for each file that is closed at a cache (rule 48). These
are not accesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import msgspec

from cmsspark.base.access import AccessBatch
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.json_lines import CheckedRecord, JsonDecoder, split_flat
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import load_schema
from cmsspark.sources.values import Apps, site_name

#: The name of the feed in ``etc/sources.yaml``.
FEED: Final = "xcache"
#: Attributes of a record that are summed.
_SUMS: Final = ("hit_bytes", "missed_bytes", "bypass_bytes", "disk_bytes", "prefetch_bytes")


class CacheSums(msgspec.Struct):
    """The records of one site: distinct servers and files, and sums in bytes. Null counts as 0."""

    closes: int = 0
    hit_bytes: int = 0
    missed_bytes: int = 0
    bypass_bytes: int = 0
    disk_bytes: int = 0
    prefetch_bytes: int = 0
    servers: set[str] = msgspec.field(default_factory=set)
    #: The largest size of each file that was closed.
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    #: The largest count of opens of each (server, file): a cache counts on since the
    #: file came.
    opens: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)


class CacheDecoder(JsonDecoder):
    """Decodes XCache's lines into ``sites``; its batches have bins only.

    The feed is small, so that each line is parsed alone.
    """

    stream = FEED

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        self._schema = load_schema(f"{FEED}/{format_name}")
        super().__init__(day, apps, format_name)
        self.sites: dict[str, CacheSums] = {}

    def line_types(self) -> Sequence[Any]:
        """Return no type: all lines are left to the strict parser."""
        return ()

    def decode_lines(self, lines: Content) -> list[Any]:
        """Leave all lines to the strict parser. Raises msgspec.ValidationError."""
        raise msgspec.ValidationError

    def strict(self, fields: Fields) -> Any:
        """Return the record of a parsed line, whose fields are in ``data`` or beside
        ``metadata``. Raises Malformed.
        """
        values, metadata = split_flat(fields, "file_path")
        return CheckedRecord(self._schema.check_all(values, ""), metadata)

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day; all others are added to the sums of their site."""
        for data in self.of_the_day(records, batch):
            sums = self.sites.setdefault(site_name(data["site"]), CacheSums())
            sums.closes += 1
            for name in _SUMS:
                setattr(sums, name, getattr(sums, name) + (data[name] or 0))
            if data["server"]:
                sums.servers.add(data["server"])
            if path := data["path"]:
                sums.sizes[path] = max(sums.sizes.get(path, 0), data["size"] or 0)
                copy = (data["server"] or "", path)
                sums.opens[copy] = max(sums.opens.get(copy, 0), data["accesses"] or 0)
