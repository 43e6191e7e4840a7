"""HTCondor's records in a task, in blobs by job, and their merge: one record for each job, and the sums of the tables
(rules 50 to 54).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.apps.jobs_cost.core_windows import HourSums, Place, Presences
from cmsspark.apps.jobs_cost.ended_jobs import SUMS, EndedJobs, PackedJobs, SelectedJobs, number_all, split
from cmsspark.apps.jobs_cost.feed_rows import FeedAggregator
from cmsspark.base.access import AccessBatch
from cmsspark.base.arrays import Longs, sums_by_group
from cmsspark.counting.catalogue import hash_all, name_hash
from cmsspark.sources.condor_costs import TOO_LARGE, CoreGroup

#: Records that a task keeps before they leave it.
_JOBS_AT_ONCE: Final = 25_000
_PRESENCES_AT_ONCE: Final = 400_000
#: Partitions by the hash of a job's id: few, as each has most of the keys.
_PARTITIONS: Final = 32


class CostBlob(msgspec.Struct, frozen=True, array_like=True):
    """Records of jobs of one partition. ``windows``: those of the day with any record, as bits in 16 bytes."""

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
            self._keep_presences(hashes.view(np.int64), np.array(batch.groups), np.array(batch.read_bytes))
        if batch.packed is not None and batch.packed.count:
            windows = batch.packed.read_bytes
            assert windows is not None
            self._keep_presences(batch.packed.hashes.view(np.int64), batch.packed.groups, windows)

    def _keep_presences(self, hashes: Longs, groups: Longs, windows: Longs) -> None:
        self._presences.append(Presences(hashes, groups.astype(np.uint32), windows.astype(np.uint8)))
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


_LOW: Final = 2**32 - 1


class Row(msgspec.Struct, array_like=True):
    """A row of ``job_efficiency``: keys, sums by ``SUMS``, the schedds of its jobs and hashes of its people."""

    key: tuple[Any, ...]
    sums: list[int]
    schedds: set[str]
    users: set[int]


class _Partial(msgspec.Struct, array_like=True):
    """The sums of a partition, to leave its task."""

    rows: list[Row]
    hours: list[tuple[tuple[str, str | None, str], int, list[int]]]
    windows: bytes
    counted: int
    repeated: int
    ids: bytes


@dataclass
class CostSums:
    """The sums of jobs of some partitions."""

    hours: dict[tuple[Place, int], HourSums] = field(default_factory=dict)
    windows: int = 0
    counted: int = 0
    repeated: int = 0
    ids: list[Longs] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)
    #: The sums of the upper and of the lower 32 bits, by sum and row.
    _sums: Longs = field(default_factory=lambda: np.zeros((2, len(SUMS), 0), np.int64))
    #: Schedds, and people as hashes; and their pairs with rows: the number of the row above 32 bits.
    _names: tuple[dict[Any, int], ...] = field(default_factory=lambda: ({}, {}))
    _pairs: tuple[list[Longs], ...] = field(default_factory=lambda: ([], []))

    def merge(self, blobs: Iterable[bytes], earlier: Longs) -> None:
        """Add partitions: ``blobs`` have all records of each job. ``earlier``: ids of the day before, sorted."""
        records, groups, presences = EndedJobs(), dict[CoreGroup, int](), []
        for blob in map(decode, blobs):
            if blob.jobs is not None:
                records.add_packed(blob.jobs)
            columns = Presences.unpack(blob.presences)
            columns.groups = number_all(blob.groups, groups)[columns.groups]
            presences.append(columns)
            self.windows |= int.from_bytes(blob.windows, "little")
        for key, sums in Presences.concatenate(presences).by_hour(groups).items():
            self._add_hour(key, sums)
        jobs = records.select(earlier)
        self._add_jobs(jobs)
        self.ids.append(jobs.ids)
        count = jobs.sums.shape[1]
        self.counted += count
        self.repeated += len(records.records) - count

    def _add_jobs(self, jobs: SelectedJobs) -> None:
        (keys, schedds, users), (row_keys, *names) = jobs.numbers, jobs.values
        # Only rows of jobs that count.
        used, indices = np.unique(keys, return_inverse=True)
        rows = self._add([row_keys[number] for number in used.tolist()], jobs.sums, indices)[indices].astype(np.int64)
        names[1] = [None if user is None else name_hash(user.encode()) for user in names[1]]
        for numbers, values, all_values, pairs in zip((schedds, users), names, self._names, self._pairs, strict=True):
            pairs.append(np.unique(rows << 32 | number_all(values, all_values)[numbers]))

    def _add(self, keys: Iterable[Any], columns: Iterable[Any], indices: Any = slice(None)) -> npt.NDArray[np.uint32]:
        """Add values of the rows of ``keys[places]``, and return the number of each key."""
        rows = number_all(keys, self._numbers)
        size = len(self._numbers)
        self._sums = np.pad(self._sums, ((0, 0), (0, 0), (0, size - self._sums.shape[2])))
        for sums, values in zip(self._sums.swapaxes(0, 1), columns, strict=True):
            sums += sums_by_group(rows[indices], np.asarray(values, np.uint64), size)
        return rows

    @property
    def rows(self) -> list[Row]:
        """The rows, with exact sums."""
        rows = [Row(key, [], set(), set()) for key in self._numbers]
        for upper, lower in self._sums.swapaxes(0, 1).tolist():
            for row, high, low in zip(rows, upper, lower, strict=True):
                row.sums.append((high << 32) + low)
        for attribute, names, pairs in zip(("schedds", "users"), self._names, self._pairs, strict=True):
            values = list(names)
            for pair in np.unique(np.concatenate([np.zeros(0, np.int64), *pairs])).tolist():
                if (value := values[pair & _LOW]) is not None:
                    getattr(rows[pair >> 32], attribute).add(value)
        return rows

    def _add_hour(self, key: tuple[Place, int], sums: Iterable[int]) -> None:
        cores, pairs = sums
        before = self.hours.get(key, (0, 0))
        self.hours[key] = (before[0] + cores, before[1] + pairs)

    def encode(self) -> bytes:
        """Return the sums as bytes, to leave a task."""
        rows = self.rows
        for row in rows:
            row.sums = _capped(row.sums)
        partial = _Partial(
            rows,
            [(key, hour, _capped(sums)) for (key, hour), sums in self.hours.items()],
            self.windows.to_bytes(16, "little"),
            self.counted,
            self.repeated,
            self.all_ids().tobytes(),
        )
        return msgspec.msgpack.encode(partial)

    def add_encoded(self, content: bytes) -> None:
        """Add the sums that :meth:`encode` made bytes of."""
        partial = msgspec.msgpack.decode(content, type=_Partial)
        columns = np.array([row.sums for row in partial.rows], np.uint64).reshape(-1, len(SUMS)).T
        numbers = self._add((row.key for row in partial.rows), columns)
        for attribute, values, pairs in zip(("schedds", "users"), self._names, self._pairs, strict=True):
            for number, row in zip(numbers.astype(np.int64), partial.rows, strict=True):
                names: set[Any] = getattr(row, attribute)
                pairs.append(number << 32 | number_all(names, values).astype(np.int64))
        for key, hour, sums in partial.hours:
            self._add_hour((key, hour), sums)
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
