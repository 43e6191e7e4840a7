"""HTCondor's records in a task: jobs that ended, and presences of running jobs, in blobs by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from cmsspark.apps.jobs_cost.core_windows import Presences
from cmsspark.apps.jobs_cost.ended_jobs import EndedJobs, PackedJobs, split
from cmsspark.apps.jobs_cost.feed_rows import FeedAggregator
from cmsspark.base.access import AccessBatch
from cmsspark.base.arrays import Longs
from cmsspark.counting.catalogue import hash_all
from cmsspark.sources.condor_costs import CoreGroup

#: Records that a task keeps before they leave it.
_JOBS_AT_ONCE: Final = 25_000
_PRESENCES_AT_ONCE: Final = 400_000
#: Partitions by the hash of a job's id: few, as each has most of the keys.
_PARTITIONS: Final = 32


class CostBlob(msgspec.Struct, frozen=True, array_like=True):
    """Records of jobs of one partition. ``windows``: those of the day with any record,
    as bits in 16 bytes.
    """

    jobs: PackedJobs | None
    groups: list[CoreGroup]
    presences: list[bytes]
    windows: bytes


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(CostBlob).decode


@dataclass
class CostAggregator(FeedAggregator):
    """Collects the records of jobs in one task."""

    _jobs: EndedJobs = field(default_factory=EndedJobs)
    _presences: list[Presences] = field(default_factory=list)
    _count: int = 0
    _windows: int = 0

    @property
    def rows_in_memory(self) -> int:
        """Records in memory."""
        return len(self._jobs.records) + self._count

    def keep(self, batch: AccessBatch) -> None:
        """Keep the jobs, the presences and the windows of a batch."""
        self._windows |= batch.windows
        if batch.jobs:
            self._jobs.add(batch.jobs)
        if batch.lfns:
            hashes = hash_all((name.encode() for name in batch.lfns), len(batch.lfns))
            self._keep_presences(
                hashes.view(np.int64), np.array(batch.groups), np.array(batch.read_bytes)
            )
        if batch.packed is not None and batch.packed.count:
            windows = batch.packed.read_bytes
            assert windows is not None
            self._keep_presences(batch.packed.hashes.view(np.int64), batch.packed.groups, windows)

    def _keep_presences(self, hashes: Longs, groups: Longs, windows: Longs) -> None:
        self._presences.append(
            Presences(hashes, groups.astype(np.uint32), windows.astype(np.uint8))
        )
        self._count += len(hashes)

    def is_full(self) -> bool:
        """Return whether the records should leave the task."""
        return len(self._jobs.records) >= _JOBS_AT_ONCE or self._count >= _PRESENCES_AT_ONCE

    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return a blob for each partition that has any record."""
        jobs, presences = self._jobs.pack(_PARTITIONS), Presences.concatenate(self._presences)
        rows = dict(split(presences.hashes, _PARTITIONS))
        windows = {0: self._windows} if self._windows else {}
        self._jobs, self._presences, self._count, self._windows = EndedJobs(), [], 0, 0
        return {
            number: encode(
                CostBlob(
                    jobs.get(number),
                    list(groups) if number in rows else [],
                    presences.select(rows.get(number, slice(0))).pack(),
                    windows.get(number, 0).to_bytes(16, "little"),
                )
            )
            for number in sorted({*jobs, *rows, *windows})
        }
