"""HTCondor's records in a task: jobs that ended, and presences of running jobs, in blobs by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from cmsspark.apps.jobs_cost.core_windows import PlaceNumbers, Presences
from cmsspark.apps.jobs_cost.feed_rows import PARTITIONS, FeedAggregator
from cmsspark.base.access import AccessBatch
from cmsspark.base.exact_integers import Longs
from cmsspark.counting.catalogue import name_hash
from cmsspark.counting.htcondor_jobs import id_hash
from cmsspark.sources.condor_costs import JobCost

#: Records that a task keeps before they leave it.
_JOBS_AT_ONCE: Final = 20_000
_PRESENCES_AT_ONCE: Final = 400_000


class CostBlob(msgspec.Struct, frozen=True, array_like=True):
    """Records of jobs of one partition. ``windows``: those of the day with any record, as bits in 16 bytes."""

    jobs: list[JobCost]
    places: list[tuple[str, str | None, str]]
    presences: list[bytes]
    windows: bytes


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(CostBlob).decode


@dataclass
class CostAggregator(FeedAggregator):
    """Collects the records of jobs in one task."""

    _jobs: list[JobCost] = field(default_factory=list)
    #: Presences with the decoder's groups as places.
    _presences: list[Presences] = field(default_factory=list)
    _count: int = 0
    _windows: int = 0

    @property
    def held(self) -> int:
        """Records in memory."""
        return len(self._jobs) + self._count

    def keep(self, batch: AccessBatch) -> None:
        """Keep the jobs, the presences and the windows of a batch."""
        self._jobs += batch.jobs
        self._windows |= batch.windows
        if batch.lfns:
            hashes = np.fromiter((name_hash(name.encode()) for name in batch.lfns), np.uint64, len(batch.lfns))
            self._keep_presences(
                hashes.view(np.int64), np.array(batch.groups, np.int64), np.array(batch.read_bytes, np.int64)
            )
        if batch.packed is not None and batch.packed.count:
            windows = batch.packed.read_bytes
            assert windows is not None
            self._keep_presences(batch.packed.hashes.view(np.int64), batch.packed.groups, windows)

    def _keep_presences(self, hashes: Longs, groups: Longs, windows: Longs) -> None:
        self._presences.append(Presences(hashes, groups, windows, np.zeros(0, np.int64)))
        self._count += len(hashes)

    def is_full(self) -> bool:
        """Return whether the records should leave the task."""
        return len(self._jobs) >= _JOBS_AT_ONCE or self._count >= _PRESENCES_AT_ONCE

    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return a blob for each partition that has any record."""
        jobs: dict[int, list[JobCost]] = {}
        for job in self._jobs:
            jobs.setdefault(id_hash(job.job_id) & (PARTITIONS - 1), []).append(job)
        names, presences = self._taken(groups)
        partitions = presences.hashes & (PARTITIONS - 1)
        windows, self._windows, self._jobs = self._windows, 0, []
        numbers = {*jobs, *np.unique(partitions).tolist(), *((0,) if windows else ())}
        blobs = {}
        for number in sorted(numbers):
            rows = presences.select(partitions == number)
            seen = windows.to_bytes(16, "little") if number == 0 else b""
            blobs[number] = encode(CostBlob(jobs.get(number, []), names.places, rows.pack(), seen))
        return blobs

    def _taken(self, groups: Sequence[Any]) -> tuple[PlaceNumbers, Presences]:
        """Return the presences with numbers of places, each (job, place, window) once; none stay."""
        names = PlaceNumbers()
        taken, self._presences, self._count = self._presences, [], 0
        places = np.fromiter((names.number(group[:3]) for group in groups), np.int64)
        cores = np.array([group.core_milli for group in groups], np.int64)
        columns = [Presences(part.hashes, places[part.places], part.windows, cores[part.places]) for part in taken]
        return names, Presences.concatenate(columns).largest()
