"""CRAB jobs from JobMonitoring: Avro with nullable text fields only (``docs/feeds.md``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from itertools import compress
from typing import Any, Final

from cmsspark.base.access import AccessBatch, Group, Remote
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict, as_is, person_name, site_name
from cmsspark.sources.formats.fast_avro import AvroFields, FastAvroReader
from cmsspark.sources.formats.json_lines import Coder, add_lfns
from cmsspark.sources.record_schema import load_schema
from cmsspark.sources.values import avro_text, milliseconds, milliseconds_of_all

#: The attributes of a job's access to a file, in the order of its values; times are in
#: seconds as text.
_ATTRIBUTES: Final = ("lfn", "site", "user", "app", "cpu_ms", "wall_ms")


class CrabDecoder:
    """Decodes CRAB records. The catalogue decides whether an access is remote."""

    stream = "crab"

    def __init__(self, day: date, apps: Apps, format_name: str = "avro") -> None:
        del day  # CRAB records have no delivery time; they belong to the folder's day (rule 6).
        self.apps = apps
        self.coder = Coder()
        self._codes = MemoDict(self._number)
        self.avro_fields = load_schema(f"crab/{format_name}").keys(*_ATTRIBUTES)
        self.avro_required, *shared = self.avro_fields[:4]
        needs = AvroFields(self.avro_required, tuple(shared), times=self.avro_fields[4:])
        self.fast_avro = FastAvroReader(
            needs, (as_is, as_is, self.apps.of.__getitem__), self._number
        )

    @property
    def groups(self) -> list[Group]:
        """The groups that batches refer to."""
        return self.coder.groups

    def avro_record(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of an Avro record by ``_ATTRIBUTES``. Raises Malformed."""
        times = (milliseconds(avro_text(row, name), name) for name in self.avro_fields[4:])
        return *(avro_text(row, name) for name in self.avro_fields[:4]), *times

    def take(self, records: list[tuple[Any, ...]], batch: AccessBatch) -> None:
        """Bin records as no_lfn; all others are accesses."""
        self._take(
            *map(list, zip(*records, strict=True)) if records else [[] for _ in _ATTRIBUTES],
            batch=batch,
        )

    def take_columns(
        self, columns: Mapping[str, list[str | None]], batch: AccessBatch
    ) -> dict[int, str]:
        """As ``take``, for columns of text or null. Skips malformed rows and returns
        the reason of each, in order.
        """
        reasons: dict[int, str] = {}
        cpu_field, wall_field = self.avro_fields[4:]
        wall = milliseconds_of_all(columns[wall_field], wall_field, reasons)
        # Where both are malformed, the reason of the CPU time counts.
        cpu = milliseconds_of_all(columns[cpu_field], cpu_field, reasons)
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
        site = site_name(logged)
        remote = Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA
        return self.coder.number(site, app, user if person_name(user) else None, remote)
