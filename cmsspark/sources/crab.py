"""CRAB jobs from JobMonitoring: Avro with nullable text fields only (``docs/feeds.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from itertools import compress
from typing import Any, NamedTuple

from cmsspark.base.access import AccessBatch, Group, Remote
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict, as_is
from cmsspark.sources.formats.fast_avro import AvroFields, FastAvroReader
from cmsspark.sources.formats.json_lines import Coder, add_lfns
from cmsspark.sources.values import avro_text, milliseconds, milliseconds_of_all

_REQUIRED = AvroFields("FileName", ("SiteName", "GridName", "SubmissionTool"), times=("WrapCPU", "WrapWC"))


class JobRecord(NamedTuple):
    """Needed fields of a job's file access; times in seconds as text."""

    lfn: str | None
    site: str | None
    user: str | None
    tool: str | None
    cpu_ms: int | None
    wall_ms: int | None


class CrabDecoder:
    """Decodes CRAB records. The catalogue decides whether an access is remote."""

    stream = "crab"
    avro_fields = ("FileName", "SiteName", "GridName", "SubmissionTool", "WrapCPU", "WrapWC")
    avro_required = "FileName"

    def __init__(self, day: date, apps: Apps, format_name: str = "avro") -> None:
        del day, format_name  # CRAB records have no delivery time; they belong to the folder's day (rule 6).
        self.apps = apps
        self.coder = Coder()
        self._codes = MemoDict(self._number)
        meanings = (as_is, as_is, self.apps.of.__getitem__)
        self.fast_avro = FastAvroReader(_REQUIRED, meanings, self._number)

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to."""
        return self.coder.groups

    def avro_record(self, row: Mapping[str, Any]) -> JobRecord:
        """Return an Avro record's needed fields. Raises Malformed."""
        return JobRecord(
            avro_text(row, "FileName"),
            avro_text(row, "SiteName"),
            avro_text(row, "GridName"),
            avro_text(row, "SubmissionTool"),
            milliseconds(avro_text(row, "WrapCPU"), "WrapCPU"),
            milliseconds(avro_text(row, "WrapWC"), "WrapWC"),
        )

    def take(self, records: list[JobRecord], batch: AccessBatch) -> None:
        """Bin records as no_lfn; all others are accesses."""
        self._take(*map(list, zip(*records, strict=True)) if records else [[] for _ in JobRecord._fields], batch=batch)

    def take_columns(self, columns: Mapping[str, list[str | None]], batch: AccessBatch) -> dict[int, str]:
        """As ``take``, for columns of text or null. Skips malformed rows and returns the reason of each, in order."""
        reasons: dict[int, str] = {}
        wall = milliseconds_of_all(columns["WrapWC"], "WrapWC", reasons)
        cpu = milliseconds_of_all(
            columns["WrapCPU"], "WrapCPU", reasons
        )  # where both are malformed, the reason of the CPU time counts
        arguments: list[list[Any]] = [*(columns[name] for name in self.avro_fields[:4]), cpu, wall]
        if reasons:
            is_accepted = bytearray(b"\1") * len(cpu)
            for row in reasons:
                is_accepted[row] = 0
            arguments = [list(compress(column, is_accepted)) for column in arguments]
        self._take(*arguments, batch=batch)
        return dict(sorted(reasons.items()))

    def _take(
        self,
        lfns: list[str | None],
        sites: list[str | None],
        users: list[str | None],
        tools: list[str | None],
        cpu_ms: list[int | None],
        wall_ms: list[int | None],
        *,
        batch: AccessBatch,
    ) -> None:
        apps = map(self.apps.of.__getitem__, tools)
        groups = map(self._codes.__getitem__, zip(sites, users, apps, strict=True))
        # A record without a name is only counted; at worst its group is unused.
        with_lfn = add_lfns(list(zip(groups, cpu_ms, wall_ms, strict=True)), lfns, batch)
        batch.groups += [group for group, _, _ in with_lfn]
        if batch.cpu_ms is None or batch.wall_ms is None:
            batch.cpu_ms, batch.wall_ms = [], []
        batch.cpu_ms += [cpu for _, cpu, _ in with_lfn]
        batch.wall_ms += [wall for _, _, wall in with_lfn]

    def _number(self, key: tuple[str | None, str | None, str]) -> int:
        logged, user, app = key
        site = logged or UNKNOWN
        remote = Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA
        return self.coder.number(site, app, user or None, remote)
