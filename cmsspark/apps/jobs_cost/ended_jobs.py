"""Records of jobs that ended, in columns, from which a merge takes one record for each
job (rule 31).

A record itself is needed only where another one may be of the same job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs
from cmsspark.counting.htcondor_jobs import id_hashes
from cmsspark.sources.condor_costs import JobCost

#: The keys of a row of ``job_efficiency``: attributes of a job.
EFFICIENCY_KEYS: Final = (
    "type",
    "job_type",
    "campaign",
    "request",
    "site",
    "subsite",
    "tier",
    "outcome",
)
#: The sums of a row of ``job_efficiency``, and others that the tables are made of: for
#: each what a job adds, by an attribute or a function; null adds 0.
SUMS: Final[Mapping[str, Any]] = {
    "job_count": lambda job: 1,
    "core_sum_milli": attrgetter("core_milli"),
    "cpu_ms": attrgetter("cpu_ms"),
    "wall_ms": attrgetter("wall_ms"),
    "core_ms": attrgetter("core_ms"),
    "last_core_ms": attrgetter("last_core_ms"),
    "evicted_core_ms": lambda job: max(0, job.core_ms - job.last_core_ms),
    "committed_core_ms": attrgetter("committed_core_ms"),
    "committed_wall_ms": attrgetter("committed_wall_ms"),
    "read_ms": attrgetter("chirp_read_ms"),
    "elapsed_ms": attrgetter("chirp_elapsed_ms"),
    "hs06_cpu_ms": attrgetter("hs06_cpu_ms"),
    "hs06_job_count": lambda job: job.hs06_cpu_ms is not None,
    "max_wall_ms": attrgetter("max_wall_ms"),
    "committed_with_max_ms": lambda job: job.max_wall_ms is not None and job.committed_wall_ms,
    "chirp_job_count": lambda job: job.chirp_elapsed_ms is not None,
    # Both sums of a ratio are of the same jobs.
    "core_with_cpu_ms": lambda job: job.cpu_ms is not None and job.core_ms,
    "last_core_with_cpu_ms": lambda job: job.cpu_ms is not None and job.last_core_ms,
    "wall_core_with_cpu_ms": lambda job: job.cpu_ms is not None and job.wall_core_ms,
    "committed_core_with_cpu_ms": lambda job: job.cpu_ms is not None and job.committed_core_ms,
    "cpu_with_committed_ms": lambda job: job.committed_core_ms and job.cpu_ms,
    "wall_with_committed_ms": lambda job: job.committed_wall_ms and job.wall_ms,
    # Core hours are those of Completed jobs.
    "core_hours_ms": lambda job: job.is_completed and job.core_hours_ms,
}
#: What a job is counted by: its row, its schedd and its person.
_ATTRIBUTES: Final[tuple[Any, ...]] = (
    attrgetter(*EFFICIENCY_KEYS),
    attrgetter("schedd"),
    attrgetter("user"),
)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(JobCost).decode


class PackedJobs(msgspec.Struct, frozen=True, array_like=True):
    """Records as they leave a task."""

    columns: list[bytes]
    #: Distinct values of ``_ATTRIBUTES``.
    values: tuple[list[tuple[str | None, ...]], list[str | None], list[str | None]]
    records: list[msgspec.Raw]


class EndedJobs:
    """Records in columns: hashes of ids, values of ``SUMS``, numbers of distinct
    ``_ATTRIBUTES``, encoded records.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._values: list[dict[Any, int]] = [{} for _ in _ATTRIBUTES]
        self.records: list[msgspec.Raw] = []

    def add(self, jobs: Sequence[JobCost]) -> None:
        """Add records of jobs."""
        sums = np.array([[value(job) or 0 for job in jobs] for value in SUMS.values()], np.uint64)
        numbers = [
            number_all([get(job) for job in jobs], values)
            for get, values in zip(_ATTRIBUTES, self._values, strict=True)
        ]
        self._parts.append(
            (id_hashes([job.job_id for job in jobs]), sums, np.array(numbers, np.uint32))
        )
        self.records += [msgspec.Raw(_encode(job)) for job in jobs]

    def add_packed(self, packed: PackedJobs) -> None:
        """Add records that left a task."""
        hashes, sums, numbers = (
            np.frombuffer(column, kind)
            for column, kind in zip(packed.columns, (np.int64, np.uint64, np.uint32), strict=True)
        )
        names: tuple[list[Any], ...] = packed.values
        renumbered = [
            number_all(some, values) for some, values in zip(names, self._values, strict=True)
        ]
        columns = [
            new[column]
            for new, column in zip(renumbered, numbers.reshape(len(names), -1), strict=True)
        ]
        self._parts.append((hashes, sums.reshape(len(SUMS), -1), np.array(columns)))
        self.records += packed.records

    def _columns(self) -> Iterator[npt.NDArray[Any]]:
        empty = (
            np.zeros(0, np.int64),
            np.zeros((len(SUMS), 0), np.uint64),
            np.zeros((len(_ATTRIBUTES), 0), np.uint32),
        )
        return (
            np.concatenate(column, axis=-1) for column in zip(empty, *self._parts, strict=True)
        )

    def pack(self, partitions: int) -> dict[int, PackedJobs]:
        """Return the records of each partition that has any, by the hashes of the ids."""
        hashes, sums, numbers = self._columns()
        values = [list(names) for names in self._values]
        packed = {}
        for partition, rows in split(hashes, partitions):
            used = [np.unique(column[rows], return_inverse=True) for column in numbers]
            names = [
                [of[number] for number in some.tolist()]
                for of, (some, _) in zip(values, used, strict=True)
            ]
            inverse = np.array([numbers_used for _, numbers_used in used], np.uint32)
            columns = [hashes[rows].tobytes(), sums[:, rows].tobytes(), inverse.tobytes()]
            packed[partition] = PackedJobs(
                columns,
                (names[0], names[1], names[2]),
                [self.records[row] for row in rows.tolist()],
            )
        return packed

    def select(self, earlier: Longs) -> SelectedJobs:
        """Return one record of each job, without the jobs whose hashes are in ``earlier``."""
        hashes, sums, numbers = self._columns()
        rows = np.setdiff1d(np.arange(len(hashes)), self._surpassed(hashes))
        rows = rows[~np.isin(hashes[rows], earlier)]
        return SelectedJobs(
            sums[:, rows],
            numbers[:, rows],
            [list(names) for names in self._values],
            np.unique(hashes),
        )

    def _surpassed(self, hashes: Longs) -> Longs:
        """Return the rows of records of which another one of the same job counts."""
        ordered = np.sort(hashes)
        again = np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]])
        best: dict[str, tuple[JobCost, int]] = {}
        surpassed = []
        for row in np.flatnonzero(again).tolist():
            job = _decode(self.records[row])
            best_job, worse_row = best.setdefault(job.job_id, (job, row))
            if worse_row == row:
                continue
            if job.is_above(best_job):
                best[job.job_id] = (job, row)
            else:
                worse_row = row
            surpassed.append(worse_row)
        return np.array(surpassed, np.int64)


class SelectedJobs(msgspec.Struct, frozen=True):
    """Jobs that count: values of ``SUMS``, numbers of their distinct keys, schedds and
    users, which are the ``values``; hashes of all ids of the day.
    """

    sums: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint32]
    values: list[list[Any]]
    ids: Longs


def number_all(values: Iterable[Any], numbers: dict[Any, int]) -> npt.NDArray[np.uint32]:
    """Return the number of each value in ``numbers``, which gets new ones."""
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.uint32)


def split(hashes: Longs, partitions: int) -> Iterator[tuple[int, Longs]]:
    """Yield the rows of each partition that has any; ``partitions``: a power of two, at most 256."""
    numbers = (hashes & (partitions - 1)).astype(np.uint8)
    order = np.argsort(numbers, kind="stable")
    ends = np.concatenate([[0], np.bincount(numbers, minlength=partitions).cumsum()]).tolist()
    for partition, (begin, end) in enumerate(pairwise(ends)):
        if begin < end:
            yield partition, order[begin:end]
