"""The merge of HTCondor's records: one record for each job, and the sums of the tables
(rules 50 to 54).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.apps.jobs_cost.core_windows import HourSums, Place, Presences
from cmsspark.apps.jobs_cost.cost_records import decode
from cmsspark.apps.jobs_cost.ended_jobs import SUMS, EndedJobs, SelectedJobs, number_all
from cmsspark.base.arrays import Longs
from cmsspark.base.exact_integers import sums_by_group
from cmsspark.counting.catalogue import name_hash
from cmsspark.sources.condor_costs import TOO_LARGE, CoreGroup

_LOW: Final = 2**32 - 1


class Row(msgspec.Struct, array_like=True):
    """A row of ``job_efficiency``: keys, sums by ``SUMS``, the schedds of its jobs and
    hashes of its people.
    """

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
    #: Schedds, and people as hashes; and their pairs with rows: the number of the row
    #: above 32 bits.
    _names: tuple[dict[Any, int], ...] = field(default_factory=lambda: ({}, {}))
    _pairs: tuple[list[Longs], ...] = field(default_factory=lambda: ([], []))

    def merge(self, blobs: Iterable[bytes], earlier: Longs) -> None:
        """Add partitions: ``blobs`` have all records of each job. ``earlier``: ids of
        the day before, sorted.
        """
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
        rows = self._add([row_keys[number] for number in used.tolist()], jobs.sums, indices)[
            indices
        ].astype(np.int64)
        names[1] = [None if user is None else name_hash(user.encode()) for user in names[1]]
        for numbers, values, all_values, pairs in zip(
            (schedds, users), names, self._names, self._pairs, strict=True
        ):
            pairs.append(np.unique(rows << 32 | number_all(values, all_values)[numbers]))

    def _add(
        self, keys: Iterable[Any], columns: Iterable[Any], indices: Any = slice(None)
    ) -> npt.NDArray[np.uint32]:
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
        for attribute, names, pairs in zip(
            ("schedds", "users"), self._names, self._pairs, strict=True
        ):
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
        for attribute, values, pairs in zip(
            ("schedds", "users"), self._names, self._pairs, strict=True
        ):
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
