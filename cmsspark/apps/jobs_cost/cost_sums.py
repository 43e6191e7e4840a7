"""The merge of HTCondor's records: one record for each job, and the sums of the tables
(rules 50 to 54).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.access import AccessBatch, Group
from cmsspark.base.arrays import Longs, sums_by_group
from cmsspark.counting.catalogue import hash_all, name_hash
from cmsspark.counting.htcondor_jobs import EARLIER, JOB, JOB_COLUMNS, id_hashes
from cmsspark.counting.pre_aggregate import StreamAggregator
from cmsspark.sources.condor_costs import HOUR_WINDOWS, TOO_LARGE, CoreGroup, JobCost

# The rows of a feed that leave a task: blobs of records, one for each partition by the
# hash of the records' id.

#: Ids of the day before that leave a task together.
_IDS_AT_ONCE: Final = 200_000


class FeedAggregator(StreamAggregator):
    """Collects the records of a feed in one task, and passes them on in blobs."""

    columns: ClassVar = JOB_COLUMNS

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its records."""
        lfns, packed = batch.lfns, batch.packed
        batch.lfns, batch.packed = [], None
        super().add(batch)
        batch.lfns, batch.packed = lfns, packed
        self.bins.update(batch.job_bins)
        self.keep(batch)

    @abstractmethod
    def keep(self, batch: AccessBatch) -> None:
        """Keep the records of a batch."""

    @abstractmethod
    def is_full(self) -> bool:
        """Return whether the records should leave the task."""

    @abstractmethod
    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return the records as a blob for each partition that has any, and forget them."""

    def rows(self, groups: Any, replicas: Any, pseudonym: Callable[[str], str]) -> dict[str, Any]:
        """Return the records that have not left the task."""
        blobs = self.blobs(groups)
        if not blobs:
            return {}
        rows = self._empty(len(blobs))
        rows["kind"] = [JOB] * len(blobs)
        rows["stream"] = [self.stream] * len(blobs)
        rows["id_hash"], rows["record"] = list(blobs), list(blobs.values())
        return rows

    def drain(
        self, groups: Any, replicas: Any, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the records, once they are many, else quarantined records, once they are many."""
        return (
            self.rows(groups, replicas, pseudonym)
            if self.is_full()
            else super().drain(groups, replicas, pseudonym)
        )

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Any]
    ) -> dict[str, list[Any]]:
        rows = super()._side_rows(named, records)
        return self._empty(len(rows["kind"])) | rows

    def _empty(self, count: int) -> dict[str, list[Any]]:
        return {name: [None] * count for name, _ in JOB_COLUMNS}


class EarlierIds(FeedAggregator):
    """Collects the ids of the day before, and nothing else: its records were judged on
    their own day.
    """

    _ids: list[Longs] = msgspec.field(default_factory=list)
    _count: int = 0

    def keep(self, batch: AccessBatch) -> None:
        """Keep the ids of a batch."""
        hashes = id_hashes([record.job_id for record in batch.jobs])
        self._ids.append(hashes)
        self._count += len(hashes)

    def is_full(self) -> bool:
        """Return whether the ids should leave the task."""
        return self._count >= _IDS_AT_ONCE

    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return nothing: ids leave the task as hashes."""
        return {}

    def rows(self, groups: Any, replicas: Any, pseudonym: Callable[[str], str]) -> dict[str, Any]:
        """Return the ids that have not left the task."""
        ids = np.unique(np.concatenate([np.zeros(0, np.int64), *self._ids])).tolist()
        self._ids, self._count, self.quarantined = [], 0, []
        rows = self._empty(len(ids))
        rows["kind"] = [EARLIER] * len(ids)
        rows["stream"] = [self.stream] * len(ids)
        rows["id_hash"] = ids
        return rows if ids else {}

    def bin_rows(self) -> dict[str, list[Any]]:
        """Return no rows: bins belong to the day itself."""
        return {}

    def note_rows(
        self, notes: Sequence[tuple[str, str, int, str]], groups: Sequence[Group]
    ) -> dict[str, list[Any]]:
        """Return no rows: notes belong to the day itself."""
        return {}


# Presences of running jobs: the cores of each job in each 12-minute window (rule 54),
# in columns.

#: What running cores are summed by: site, subsite, type.
Place = tuple[str, str | None, str]
#: Sums of an hour: cores in thousandths over all windows, and pairs of a window and a job.
HourSums = tuple[int, int]
_HOURS, _WINDOWS = 24, 128
#: An odd number with bits everywhere, of the golden ratio: it spreads small numbers over 64 bits.
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_TYPES: Final = (np.int64, np.uint32, np.uint8)


class Presences(msgspec.Struct):
    """Jobs in windows: the hash of the job's id, the number of its :class:`CoreGroup`, the window."""

    hashes: Longs
    groups: npt.NDArray[Any]
    windows: npt.NDArray[Any]

    @classmethod
    def concatenate(cls, parts: Iterable[Presences]) -> Presences:
        """Return the parts behind each other."""
        rows = [cls.unpack([b""] * len(_TYPES)), *parts]
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in rows])
                for name in ("hashes", "groups", "windows")
            )
        )

    def select(self, rows: Any) -> Presences:
        """Return some rows."""
        return Presences(self.hashes[rows], self.groups[rows], self.windows[rows])

    def pack(self) -> list[bytes]:
        """Return the columns as bytes."""
        columns = (self.hashes, self.groups, self.windows)
        return [
            column.astype(kind).tobytes() for column, kind in zip(columns, _TYPES, strict=True)
        ]

    @classmethod
    def unpack(cls, columns: Sequence[bytes]) -> Presences:
        """Return the columns that :meth:`pack` made bytes of."""
        return cls(
            *(np.frombuffer(column, kind) for column, kind in zip(columns, _TYPES, strict=True))
        )

    def by_hour(self, groups: Iterable[CoreGroup]) -> dict[tuple[Place, int], HourSums]:
        """Return the sums of each place and hour: each (job, place, window) once, with
        its largest cores.
        """
        names: dict[Place, int] = {}
        pairs = [(names.setdefault(group[:3], len(names)), group.core_milli) for group in groups]
        numbers, cores = np.array(pairs, np.int64).reshape(-1, 2)[self.groups].T
        windows = self.windows.astype(np.int64)
        rows = _distinct(self.hashes, numbers * _WINDOWS + windows, cores)
        keys = (numbers * _HOURS + windows // HOUR_WINDOWS)[rows]
        size = _HOURS * len(names)
        counts = np.bincount(keys, minlength=size)
        upper, lower = sums_by_group(keys, cores[rows], size)
        of_number = list(names)
        return {
            (of_number[key // _HOURS], key % _HOURS): (
                (int(upper[key]) << 32) + int(lower[key]),
                int(counts[key]),
            )
            for key in np.flatnonzero(counts).tolist()
        }


def _distinct(hashes: Longs, numbers: Longs, cores: Longs) -> npt.NDArray[np.bool_]:
    """Return which rows have the largest cores of their (hash, number), each pair once.

    Nearly all pairs are there once: only those that another row may equal are sorted.
    """
    keys = hashes.view(np.uint64) ^ (numbers.view(np.uint64) * _SPREAD)
    ordered = np.sort(keys)
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    is_chosen = np.ones(len(keys), np.bool_)
    if len(again):
        doubtful = np.flatnonzero(np.isin(keys, again))
        order = doubtful[np.lexsort((cores[doubtful], numbers[doubtful], hashes[doubtful]))]
        is_same = (hashes[order][1:] == hashes[order][:-1]) & (
            numbers[order][1:] == numbers[order][:-1]
        )
        is_chosen[order[:-1][is_same]] = False
    return is_chosen


# Records of jobs that ended, in columns, from which a merge takes one record for each
# job (rule 31).

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
        # The rows of records of which another one of the same job counts.
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
        rows = np.setdiff1d(np.arange(len(hashes)), np.array(surpassed, np.int64))
        rows = rows[~np.isin(hashes[rows], earlier)]
        return SelectedJobs(
            sums[:, rows],
            numbers[:, rows],
            [list(names) for names in self._values],
            np.unique(hashes),
        )


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


# HTCondor's records in a task: jobs that ended, and presences of running jobs, in blobs
# by job.

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


class CostAggregator(FeedAggregator):
    """Collects the records of jobs in one task."""

    _jobs: EndedJobs = msgspec.field(default_factory=EndedJobs)
    _presences: list[Presences] = msgspec.field(default_factory=list)
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


class CostSums(msgspec.Struct):
    """The sums of jobs of some partitions."""

    hours: dict[tuple[Place, int], HourSums] = msgspec.field(default_factory=dict)
    windows: int = 0
    counted: int = 0
    repeated: int = 0
    ids: list[Longs] = msgspec.field(default_factory=list)
    _numbers: dict[Any, int] = msgspec.field(default_factory=dict)
    #: The sums of the upper and of the lower 32 bits, by sum and row.
    _sums: Longs = msgspec.field(default_factory=lambda: np.zeros((2, len(SUMS), 0), np.int64))
    #: Schedds, and people as hashes; and their pairs with rows: the number of the row
    #: above 32 bits.
    _names: tuple[dict[Any, int], ...] = msgspec.field(default_factory=lambda: ({}, {}))
    _pairs: tuple[list[Longs], ...] = msgspec.field(default_factory=lambda: ([], []))

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
        self.ids.append(jobs.ids)
        count = jobs.sums.shape[1]
        self.counted += count
        self.repeated += len(records.records) - count

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
