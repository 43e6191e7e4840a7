"""CRAB jobs from JobMonitoring: Avro, every field a nullable text (``docs/feeds.md``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple

from cmsspark.access import AccessBatch, Group, Remote
from cmsspark.sources.avro import avro_text
from cmsspark.sources.decoder import Coder
from cmsspark.sources.fields import UNKNOWN, Apps, normalise_lfn
from cmsspark.sources.strict_json import MAX_LONG, Malformed

_SECONDS = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


class Record(NamedTuple):
    """Needed fields of a job's file access; times in seconds as text."""

    lfn: str | None
    site: str | None
    user: str | None
    tool: str | None
    cpu_ms: int | None
    wall_ms: int | None


class CrabDecoder:
    """Decodes CRAB records. Whether an access was remote is for the catalogue to say."""

    stream = "crab"
    avro_fields = ("FileName", "SiteName", "GridName", "SubmissionTool", "WrapCPU", "WrapWC")
    avro_required = "FileName"

    def __init__(self, day: date, apps: Apps) -> None:
        del day  # CRAB records carry no delivery time: the folder's day is theirs (rule 6).
        self.apps = apps
        self.coder = Coder()
        self._codes: dict[tuple[str | None, ...], int] = {}

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to."""
        return self.coder.groups

    def avro_record(self, row: Mapping[str, Any]) -> Record:
        """An Avro record's needed fields. Raises Malformed."""
        return Record(
            avro_text(row, "FileName"),
            avro_text(row, "SiteName"),
            avro_text(row, "GridName"),
            avro_text(row, "SubmissionTool"),
            milliseconds(avro_text(row, "WrapCPU"), "WrapCPU"),
            milliseconds(avro_text(row, "WrapWC"), "WrapWC"),
        )

    def avro_records(self, columns: Mapping[str, list[Any]]) -> list[Record]:
        """The records of columns that are known to be text or null. Raises Malformed without saying which record."""
        lfns, sites, users, tools, cpu, wall = (columns[name] for name in self.avro_fields)
        cpu_ms = [milliseconds(seconds, "WrapCPU") for seconds in cpu]
        wall_ms = [milliseconds(seconds, "WrapWC") for seconds in wall]
        return list(map(Record, lfns, sites, users, tools, cpu_ms, wall_ms))

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin no_lfn; all else are accesses."""
        batch.cpu_ms = [] if batch.cpu_ms is None else batch.cpu_ms
        batch.wall_ms = [] if batch.wall_ms is None else batch.wall_ms
        add_lfn, add_group = batch.lfns.append, batch.groups.append
        add_cpu, add_wall, codes = batch.cpu_ms.append, batch.wall_ms.append, self._codes
        for lfn, site, user, tool, cpu_ms, wall_ms in records:
            if lfn and (lfn[:7] != "/store/" or "//" in lfn):
                lfn = normalise_lfn(lfn)
            if not lfn:
                batch.no_lfn += 1
                continue
            key = (site, user, tool)
            group = codes.get(key)
            if group is None:
                group = codes[key] = self._number(key)
            add_lfn(lfn)
            add_group(group)
            add_cpu(cpu_ms)
            add_wall(wall_ms)

    def _number(self, key: tuple[str | None, ...]) -> int:
        site = key[0] or UNKNOWN
        remote = Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA
        return self.coder.number(site, self.apps.of[key[2]], key[1] or None, remote)


def milliseconds(seconds: str | None, field: str) -> int | None:
    """Seconds as text in whole milliseconds, halves up; null and empty are null (rules 9 and 11). Raises Malformed."""
    if not seconds:
        return None
    if seconds.isascii() and seconds.isdigit() and len(seconds) < 16:
        return int(seconds) * 1000
    if _SECONDS.fullmatch(seconds) is None:
        raise Malformed(f"{field}: seconds as text are wanted, found other text")
    value = float(seconds)
    if value < 0 or not math.isfinite(value):
        raise Malformed(f"{field}: finite seconds from 0 on are wanted")
    found = math.floor(value * 1000 + 0.5)
    if found > MAX_LONG:
        raise Malformed(f"{field}: seconds beyond 2^63 ms")
    return found
