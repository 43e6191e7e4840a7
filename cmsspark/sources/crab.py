"""CRAB jobs from JobMonitoring: Avro with nullable text fields only (``docs/feeds.md``).

A record is a file of a job for each of the job's blocks, and its seconds are of the job:
:mod:`cmsspark.counting.crab_rows` counts each file and job once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import compress
from typing import Any, Final

import xxhash

from cmsspark.base.access import NO_JOB, AccessBatch, Remote
from cmsspark.sources.formats.fast_json import AvroFields, FastAvroReader, Groups, Route
from cmsspark.sources.formats.json_lines import add_lfns
from cmsspark.sources.record_schema import load_schema
from cmsspark.sources.values import (
    UNKNOWN,
    Apps,
    MemoDict,
    as_is,
    avro_text,
    milliseconds,
    milliseconds_of_all,
    person_name,
    site_name,
)

#: The attributes of a job's access to a file, in the order of its values; times are in
#: seconds as text.
_ATTRIBUTES: Final = ("lfn", "user", "app", "site", "cpu_ms", "wall_ms", "job_id")


class CrabDecoder:
    """Decodes CRAB records. The catalogue decides whether an access is remote."""

    stream = "crab"

    def __init__(self, day: date, apps: Apps, format_name: str = "avro") -> None:
        del day  # CRAB records have no delivery time; they belong to the folder's day (rule 6).
        self.apps = apps
        #: The groups that batches refer to.
        self.groups = Groups()
        self._codes = MemoDict(self._number)
        # The rows of a job often follow each other.
        self._jobs = MemoDict(job_hash, Apps.CACHE_SIZE)
        self.avro_fields = load_schema(f"crab/{format_name}").keys(*_ATTRIBUTES)
        self.avro_required, *shared = self.avro_fields[:4]
        needs = AvroFields(self.avro_required, tuple(shared), times=self.avro_fields[4:])
        meanings = (_person, self.apps.of.__getitem__, as_is)
        self.fast_avro = FastAvroReader(
            needs, meanings, lambda site: self.groups.routes[_route(*site)], self.groups
        )

    def avro_record(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of an Avro record by ``_ATTRIBUTES``. Raises Malformed."""
        times = (milliseconds(avro_text(row, name), name) for name in self.avro_fields[4:6])
        texts = (avro_text(row, name) for name in self.avro_fields[:4])
        return *texts, *times, avro_text(row, self.avro_fields[6])

    def take(self, records: list[tuple[Any, ...]], batch: AccessBatch) -> None:
        """Bin records as no_lfn; all others are accesses."""
        self.take_numbered(records, range(len(records)), batch)

    def take_numbered(
        self, records: list[tuple[Any, ...]], positions: Sequence[int], batch: AccessBatch
    ) -> None:
        """As ``take``, with the number of each record in its file."""
        self._take(
            *map(list, zip(*records, strict=True)) if records else [[] for _ in _ATTRIBUTES],
            positions=positions,
            batch=batch,
        )

    def take_columns(
        self, columns: Mapping[str, list[str | None]], batch: AccessBatch, position: int = 0
    ) -> dict[int, str]:
        """As ``take``, for columns of text or null, of which the first row has the
        number ``position`` in its file. Skips malformed rows and returns the reason of
        each, in order.
        """
        reasons: dict[int, str] = {}
        cpu_field, wall_field, job_field = self.avro_fields[4:]
        wall = milliseconds_of_all(columns[wall_field], wall_field, reasons)
        # Where both are malformed, the reason of the CPU time counts.
        cpu = milliseconds_of_all(columns[cpu_field], cpu_field, reasons)
        arguments: list[list[Any]] = [*(columns[name] for name in self.avro_fields[:4]), cpu, wall]
        arguments += [columns[job_field], list(range(position, position + len(cpu)))]
        if reasons:
            is_accepted = bytearray(b"\1") * len(cpu)
            for row in reasons:
                is_accepted[row] = 0
            arguments = [list(compress(column, is_accepted)) for column in arguments]
        self._take(*arguments[:-1], positions=arguments[-1], batch=batch)
        return dict(sorted(reasons.items()))

    def _take(
        self,
        lfns: list[str | None],
        users: list[str | None],
        tools: list[str | None],
        sites: list[str | None],
        cpu_ms: list[int | None],
        wall_ms: list[int | None],
        job_ids: list[str | None],
        *,
        positions: Sequence[int],
        batch: AccessBatch,
    ) -> None:
        apps = map(self.apps.of.__getitem__, tools)
        groups = map(self._codes.__getitem__, zip(users, apps, sites, strict=True))
        jobs = map(self._jobs.__getitem__, job_ids)
        rows = list(zip(groups, cpu_ms, wall_ms, jobs, positions, strict=True))
        with_lfn, unnamed = add_lfns(rows, lfns, batch)
        batch.unnamed.update(row[0] for row in unnamed)
        if batch.cpu_ms is None or batch.wall_ms is None:
            batch.cpu_ms, batch.wall_ms = [], []
        if batch.job_hashes is None or batch.positions is None:
            batch.job_hashes, batch.positions = [], []
        columns: tuple[list[Any], ...] = (
            *(batch.groups, batch.cpu_ms, batch.wall_ms),
            *(batch.job_hashes, batch.positions),
        )
        for number, column in enumerate(columns):
            column += [row[number] for row in with_lfn]

    def _number(self, key: tuple[str | None, str, str | None]) -> int:
        user, app, site = key
        return self.groups.number(_person(user), app, _route(site))


def _person(user: str | None) -> str | None:
    """Return a user as logged; None for nobody (rule 13)."""
    return user if person_name(user) else None


def _route(logged: str | None) -> Route:
    site = site_name(logged)
    return site, Remote.UNKNOWN if site == UNKNOWN else Remote.BY_REPLICA, None


def job_hash(job_id: str | None) -> int:
    """Return the hash of a job's id, signed; ``NO_JOB`` for null and an empty one."""
    if not job_id:
        return NO_JOB
    number = xxhash.xxh64_intdigest(job_id.encode())
    return number - (1 << 64) if number >= 1 << 63 else number
