"""The merge of HTCondor's records: one record for each job, and the sums of the tables (rules 50 to 54)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from cmsspark.apps.jobs_cost.core_windows import HourSums, Place, PlaceNumbers, Presences
from cmsspark.apps.jobs_cost.cost_records import decode
from cmsspark.base.exact_integers import Longs
from cmsspark.counting.catalogue import name_hash
from cmsspark.counting.htcondor_jobs import id_hash
from cmsspark.sources.condor_costs import TOO_LARGE, JobCost

#: The keys of a row of ``job_efficiency``: attributes of a job.
EFFICIENCY_KEYS: Final = ("type", "job_type", "campaign", "request", "site", "subsite", "tier", "outcome")
#: The sums of a row of ``job_efficiency``.
EFFICIENCY_SUMS: Final = (
    *("job_count", "core_sum_milli", "cpu_ms", "wall_ms", "core_ms", "committed_core_ms", "committed_wall_ms"),
    *("read_ms", "elapsed_ms", "hs06_cpu_ms", "hs06_job_count", "max_wall_ms", "committed_with_max_ms"),
    "chirp_job_count",
)
#: The sums of a row of ``core_hours``.
CORE_HOUR_SUMS: Final = ("job_count", "core_ms", "cpu_ms", "hs06_cpu_ms")


def efficiency_of(job: JobCost) -> tuple[int, ...]:
    """Return what a job adds to ``EFFICIENCY_SUMS``."""
    has_max = job.max_wall_ms is not None
    return (
        *(1, job.core_milli, job.cpu_ms or 0, job.wall_ms, job.core_ms),
        *(job.committed_core_ms or 0, job.committed_wall_ms or 0),
        *(job.chirp_read_ms or 0, job.chirp_elapsed_ms or 0),
        *(job.hs06_cpu_ms or 0, int(job.hs06_cpu_ms is not None)),
        *(job.max_wall_ms or 0, (job.committed_wall_ms or 0) if has_max else 0),
        int(job.chirp_elapsed_ms is not None),
    )


def core_hours_of(job: JobCost) -> tuple[int, ...]:
    """Return what a job adds to ``CORE_HOUR_SUMS``; core hours are those of Completed jobs."""
    return 1, (job.core_hours_ms or 0) if job.is_completed else 0, job.cpu_ms or 0, job.hs06_cpu_ms or 0


class Row(msgspec.Struct, array_like=True):
    """A row of ``job_efficiency``: keys, sums, the schedds of its jobs and hashes of its people."""

    key: tuple[Any, ...]
    sums: list[int]
    schedds: set[str]
    users: set[int]

    def add(self, sums: Iterable[int], schedds: Iterable[str], users: Iterable[int]) -> None:
        """Add a job, or another part of the row."""
        self.sums = [total + more for total, more in zip(self.sums, sums, strict=True)]
        self.schedds.update(schedds)
        self.users.update(users)


class _Partial(msgspec.Struct, array_like=True):
    """The sums of a partition, to leave its task."""

    rows: list[Row]
    core_hours: list[tuple[tuple[Any, ...], list[int]]]
    hours: list[tuple[tuple[str, str | None, str], int, list[int]]]
    windows: bytes
    counted: int
    repeated: int
    ids: bytes


@dataclass
class CostSums:
    """The sums of jobs of some partitions."""

    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    core_hours: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    hours: dict[tuple[Place, int], HourSums] = field(default_factory=dict)
    windows: int = 0
    counted: int = 0
    repeated: int = 0
    ids: list[Longs] = field(default_factory=list)

    def merge(self, blobs: Iterable[bytes], earlier: Longs) -> None:
        """Add partitions: ``blobs`` have all records of each job. ``earlier``: ids of the day before, sorted."""
        best: dict[str, JobCost] = {}
        names, presences, count = PlaceNumbers(), [], 0
        for content in blobs:
            blob = decode(content)
            count += len(blob.jobs)
            for job in blob.jobs:
                other = best.setdefault(job.job_id, job)
                if other is not job and job.rank() > other.rank():
                    best[job.job_id] = job
            columns = Presences.unpack(blob.presences)
            columns.places = names.renumber(blob.places, columns.places)
            presences.append(columns)
            self.windows |= int.from_bytes(blob.windows, "little")
        for (place, hour), sums in Presences.concatenate(presences).largest().by_hour().items():
            self._add_hour(names.places[place], hour, sums)
        hashes = np.fromiter(map(id_hash, best), np.int64, len(best))
        self.ids.append(hashes)
        is_new = ~np.isin(hashes, earlier)
        for job, new in zip(best.values(), is_new.tolist(), strict=True):
            if new:
                self._add(job)
        self.counted += int(is_new.sum())
        self.repeated += count - int(is_new.sum())

    def _add(self, job: JobCost) -> None:
        key = tuple(getattr(job, name) for name in EFFICIENCY_KEYS)
        self._row(key).add(
            efficiency_of(job),
            () if job.schedd is None else (job.schedd,),
            () if job.user is None else (name_hash(job.user.encode()),),
        )
        self._add_core_hours((job.site, job.subsite, job.type), core_hours_of(job))

    def _row(self, key: tuple[Any, ...]) -> Row:
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Row(key, [0] * len(EFFICIENCY_SUMS), set(), set())
        return row

    def _add_core_hours(self, key: tuple[Any, ...], sums: Iterable[int]) -> None:
        totals = self.core_hours.get(key) or [0] * len(CORE_HOUR_SUMS)
        self.core_hours[key] = [total + more for total, more in zip(totals, sums, strict=True)]

    def _add_hour(self, place: Place, hour: int, sums: Iterable[int]) -> None:
        cores, pairs = sums
        before = self.hours.get((place, hour), (0, 0))
        self.hours[place, hour] = (before[0] + cores, before[1] + pairs)

    def encode(self) -> bytes:
        """Return the sums as bytes, to leave a task."""
        for row in self.rows.values():
            row.sums = _capped(row.sums)
        partial = _Partial(
            list(self.rows.values()),
            [(key, _capped(sums)) for key, sums in self.core_hours.items()],
            [(place, hour, _capped(sums)) for (place, hour), sums in self.hours.items()],
            self.windows.to_bytes(16, "little"),
            self.counted,
            self.repeated,
            self.all_ids().tobytes(),
        )
        return msgspec.msgpack.encode(partial)

    def add_encoded(self, content: bytes) -> None:
        """Add the sums that :meth:`encode` has made bytes of."""
        partial = msgspec.msgpack.decode(content, type=_Partial)
        for row in partial.rows:
            self._row(row.key).add(row.sums, row.schedds, row.users)
        for key, sums in partial.core_hours:
            self._add_core_hours(key, sums)
        for place, hour, sums in partial.hours:
            self._add_hour(place, hour, sums)
        self.windows |= int.from_bytes(partial.windows, "little")
        self.counted += partial.counted
        self.repeated += partial.repeated
        self.ids.append(np.frombuffer(partial.ids, np.int64))

    def all_ids(self) -> Longs:
        """Return the hashes of the ids of all jobs, repeated ones too, sorted."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self.ids]))


def _capped(sums: Iterable[int]) -> list[int]:
    """Return sums that msgpack can hold; one beyond 64 bits stays one that no table holds."""
    return [min(total, TOO_LARGE) for total in sums]
