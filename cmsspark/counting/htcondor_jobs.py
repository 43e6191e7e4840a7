"""Jobs instead of accesses: the records of jobs that ended, of which one counts for
each job (rules 30 to 33).

A task hands on every such record, as bytes beside a hash of the job's id. The merge has
all records of a job in one partition: it chooses the one that counts, finds its input
in DBS, and gives rows as those of accesses. The name of a user is among the keys that
decide ties, so the bytes hold it until then; the rows have pseudonyms only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np

from cmsspark.base import buffers, dates
from cmsspark.base.access import AccessBatch, HtcondorJob, Quarantined
from cmsspark.base.arrays import Longs
from cmsspark.base.errors import DataError
from cmsspark.base.names import JobInput, job_input
from cmsspark.base.schemas import Table
from cmsspark.counting.catalogue import NOT_THERE, Catalogue, Replicas, hashes_in, site_hashes
from cmsspark.counting.pre_aggregate import (
    ACCESS,
    BIN,
    COLUMNS,
    UNMATCHED_SITE,
    StreamAggregator,
    record_batch,
)
from cmsspark.sources.formats.fast_json import Groups

if TYPE_CHECKING:
    import pyarrow as pa


# Sums of CRAB's jobs of a day by input, dataset, block, user and task: what reports of
# periods are made from.

#: The keys and the sums of ``schemas/tables/crab_partials.yaml``, besides the day.
CRAB_KEYS: Final = ("input", "dataset_name", "block_name", "user", "task", "is_analysis")
CRAB_COUNTS: Final = ("job_count", "failed_job_count", "removed_job_count")
CRAB_MEASURES: Final = ("read_bytes", "cpu_ms", "wall_ms")
_COLUMNS: Final = (*CRAB_KEYS, *CRAB_COUNTS, *CRAB_MEASURES, "first_ms", "last_ms")
_LIMIT: Final = 2**63 - 1


class CrabSums:
    """Sums of jobs by ``CRAB_KEYS``. ``user`` and ``task`` are pseudonyms."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], list[Any]] = {}

    def add(self, job: HtcondorJob, key: tuple[Any, ...]) -> None:
        """Add a job that counts. A job failed if it is completed and its exit code is
        neither null nor 0 (rule 37): a removed job is not failed, whatever its code.
        """
        has_failed = job.is_completed and bool(job.exit_code)
        counts = (1, int(has_failed), int(not job.is_completed))
        self._add(
            key, (*counts, job.read_bytes, job.cpu_ms, job.wall_ms, job.time_ms, job.time_ms)
        )

    def add_sums(self, sums: CrabSums) -> None:
        """Add the sums of other jobs."""
        for key, values in sums._sums.items():
            self._add(key, tuple(values))

    def add_rows(self, rows: pa.Table) -> None:
        """Add the rows of a table that :meth:`table` made."""
        columns = [rows.column(name).to_pylist() for name in _COLUMNS]
        for values in zip(*columns, strict=True):
            self._add(values[: len(CRAB_KEYS)], values[len(CRAB_KEYS) :])

    def _add(self, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = list(values)
            return
        for index, value in enumerate(values[:-2]):
            if value is not None:
                sums[index] = (sums[index] or 0) + value
        sums[-2], sums[-1] = min(sums[-2], values[-2]), max(sums[-1], values[-1])

    def table(self, day: date, schema: Table) -> pa.Table:
        """Return the rows, sorted by their keys, null first. Raises DataError (65)
        where a sum exceeds 64 bits.
        """
        import pyarrow as pa

        in_order = sorted(
            self._sums,
            key=lambda key: [(value is not None, value or "") for value in key[:-1]] + [key[-1]],
        )
        rows = [(*key, *self._sums[key]) for key in in_order]
        values = (
            dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
            if rows
            else dict.fromkeys(_COLUMNS, ())
        )
        for name in CRAB_MEASURES:
            if max((value or 0 for value in values[name]), default=0) > _LIMIT:
                problem = f"a sum of {name} of CRAB jobs is beyond 2^63-1"
                raise DataError(problem, next_step="look for absurd sizes in the log")
        number = dates.start_ms(day) // dates.DAY_MS
        columns = [
            buffers.from_numpy(np.full(len(rows), number, np.int32)).view(pa.date32())
            if column.name == "day"
            else buffers.array(values[column.name], column.type)
            for column in schema.columns
        ]
        return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema.arrow())


#: The kind of a row with the record of a job, and of a row with the id of a job of the day before.
JOB, EARLIER = "job", "earlier"
#: (name, type) of each column of a scan of jobs: the hash of the job's id, and the record.
JOB_COLUMNS: Final = (*COLUMNS, ("id_hash", "long"), ("record", "binary"))
#: Records that a task keeps before they leave it, and that a merge looks up at once.
JOBS_KEPT: Final = 20_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HtcondorJob).decode


def id_hashes(job_ids: Sequence[str]) -> Longs:
    """Return the hashes of ids of jobs, of 64 bits, signed."""
    import pyarrow as pa

    return hashes_in(pa.chunked_array([buffers.array(job_ids, "string")])).view(np.int64)


class JobAggregator(StreamAggregator):
    """Collects the jobs of one stream in one task. Nothing is summed: the task cannot
    know which record counts.
    """

    columns: ClassVar = JOB_COLUMNS
    kind: ClassVar = JOB
    _jobs: list[HtcondorJob] = msgspec.field(default_factory=list)

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its jobs."""
        super().add(batch)
        self.bins.update(batch.job_bins)
        self._jobs += batch.jobs

    @property
    def rows_in_memory(self) -> int:
        """Jobs in memory."""
        return len(self._jobs)

    def rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the jobs that have not left the task."""
        jobs, self._jobs = self._jobs, []
        if not jobs:
            return {}
        rows = self._empty(len(jobs))
        rows["kind"] = [self.kind] * len(jobs)
        rows["stream"] = [self.stream] * len(jobs)
        rows["id_hash"] = id_hashes([job.job_id for job in jobs]).tolist()
        rows["record"] = self._records(jobs)
        return rows

    def _records(self, jobs: list[HtcondorJob]) -> list[bytes | None]:
        return [_encode(job) for job in jobs]

    def drain(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the jobs, once they are many, else quarantined records, once they are many."""
        if len(self._jobs) >= JOBS_KEPT:
            return self.rows(groups, replicas, pseudonym)
        return super().drain(groups, replicas, pseudonym)

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Quarantined]
    ) -> dict[str, list[Any]]:
        rows = super()._side_rows(named, records)
        return self._empty(len(rows["kind"])) | rows

    def _empty(self, count: int) -> dict[str, list[Any]]:
        return {name: [None] * count for name, _ in self.columns}


class EarlierJobs(JobAggregator):
    """Collects the ids of the jobs of the day before, and nothing else: its records
    were judged on their own day.
    """

    kind: ClassVar = EARLIER

    def add(self, batch: AccessBatch) -> None:
        """Keep the jobs of a batch."""
        self._jobs += batch.jobs

    def _records(self, jobs: list[HtcondorJob]) -> list[bytes | None]:
        return [None] * len(jobs)

    def drain(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the jobs, once they are many."""
        return self.rows(groups, replicas, pseudonym) if len(self._jobs) >= JOBS_KEPT else {}

    def bin_rows(self) -> dict[str, list[Any]]:
        """Return no rows: bins belong to the day itself."""
        return {}

    def note_rows(
        self, notes: Sequence[tuple[str, str, int, str]], groups: Groups
    ) -> dict[str, list[Any]]:
        """Return no rows: notes belong to the day itself."""
        return {}


def rank(job: HtcondorJob) -> tuple[Any, ...]:
    """Return the order of the records of one job, of which the last counts (rule 31);
    null is lower than any value.
    """
    return tuple((value is not None, value) for value in job[1:])


class HtcondorMerge(msgspec.Struct, frozen=True):
    """What a merge of jobs needs: the stream, the inputs in DBS, the replicas, the
    pseudonyms, and earlier ids.

    ``inputs``: a catalogue of the names of blocks and of datasets. ``earlier``: hashes
    of the ids of the jobs of the day before, sorted.
    """

    stream: str
    inputs: Catalogue
    replicas: Replicas | None
    pseudonym: Callable[[str], str]
    earlier: Longs

    def choose(self, records: Iterable[bytes], earlier: Iterable[int] = ()) -> MergedJobs:
        """Choose the record of each job. ``records``: all records of these jobs;
        ``earlier``: more earlier ids.
        """
        best: dict[str, HtcondorJob] = {}
        count = 0
        for record in records:
            count += 1
            job = _decode(record)
            rival = best.get(job.job_id)
            if rival is None or rank(job) > rank(rival):
                best[job.job_id] = job
        hashes = id_hashes(list(best))
        is_new = ~_is_in(hashes, self.earlier)
        if more := list(earlier):
            is_new &= ~_is_in(hashes, np.unique(np.array(more, np.int64)))
        counted = [job for job, new in zip(best.values(), is_new.tolist(), strict=True) if new]
        return MergedJobs(self, counted, count - len(counted), np.unique(hashes))


class MergedJobs(msgspec.Struct):
    """The jobs that count, each once. ``ids``: hashes of the ids of all jobs of the
    day, repeated ones too.
    """

    merge: HtcondorMerge
    jobs: list[HtcondorJob]
    repeated: int
    ids: Longs
    #: Sums of CRAB's jobs, complete when :meth:`batches` has ended.
    crab: CrabSums = msgspec.field(default_factory=CrabSums)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows of ``pre_aggregate.COLUMNS``: one for each job with a dataset, and
        the bins of the others.
        """
        # By kind of row and name: bins, and the sites of unmatched jobs.
        counts = Counter({(BIN, "repeated"): self.repeated})
        jobs = iter(self.jobs)
        while part := list(islice(jobs, JOBS_KEPT)):
            yield from self._accesses(part, counts)
        if counts := +counts:
            rows = _empty(len(counts))
            rows["kind"], rows["app"] = map(list, zip(*counts, strict=True))
            rows["stream"], rows["nacc"] = [self.merge.stream] * len(counts), list(counts.values())
            yield record_batch(rows, COLUMNS)

    def _accesses(
        self, jobs: list[HtcondorJob], counts: Counter[tuple[str, str]]
    ) -> Iterator[pa.RecordBatch]:
        rows = _empty(0)
        for job, match in zip(jobs, self._datasets(jobs), strict=True):
            user = None if job.user is None else self.merge.pseudonym(job.user)
            if job.app == "crab":
                # The name of a task may have its user's name in it, so it becomes a
                # pseudonym, too.
                task = self.merge.pseudonym(f"task {job.workflow}") if job.workflow else None
                self.crab.add(
                    job,
                    (
                        match.bin or "dataset",
                        match.dataset,
                        match.block,
                        user,
                        task,
                        job.is_analysis,
                    ),
                )
            if match.bin:
                counts.update([(BIN, match.bin), (UNMATCHED_SITE, job.site)])
                continue
            remote = None if match.is_remote is None else int(match.is_remote)
            values = (
                match.dataset,
                job.site,
                job.app,
                user,
                1,
                remote,
                job.read_bytes,
                job.cpu_ms,
                job.wall_ms,
                None,
            )
            for (name, _), value in zip(COLUMNS[2:], values, strict=True):
                rows[name].append(value)
        count = len(rows["nacc"])
        if count:
            rows["kind"] = buffers.dictionary_array([ACCESS], np.zeros(count, np.int32))
            rows["stream"] = buffers.dictionary_array(
                [self.merge.stream], np.zeros(count, np.int32)
            )
            yield record_batch(rows, COLUMNS)

    def _datasets(self, jobs: list[HtcondorJob]) -> list[JobDataset]:
        """Return the dataset and block of each job, or the bin of a job without a
        dataset in DBS (rules 32 and 33).
        """
        inputs = [job_input(job.data_block, job.desired_dataset) for job in jobs]
        blocks = self._pairs([entry.block for entry in inputs])
        # A block that DBS does not have, or has without a dataset, tells its dataset by its name.
        by_name = [
            entry.dataset if block == NOT_THERE else None
            for entry, block in zip(inputs, blocks.tolist(), strict=True)
        ]
        pairs = np.where(blocks == NOT_THERE, self._pairs(by_name), blocks)
        catalogue = self.merge.inputs
        is_there = pairs != NOT_THERE
        numbers = np.asarray(catalogue.pair_datasets)[pairs[is_there]]
        unique, positions = np.unique(numbers, return_inverse=True)
        names = catalogue.dataset_names(unique.astype(np.int32))
        datasets = iter([names[position] for position in positions.reshape(-1).tolist()])
        remote = self._remote(jobs, blocks)
        return [
            JobDataset(next(datasets), entry.block if block != NOT_THERE else None, None, far)
            if has_dataset
            else JobDataset(None, None, unmatched_job_bin(entry), None)
            for entry, block, has_dataset, far in zip(
                inputs, blocks.tolist(), is_there.tolist(), remote, strict=True
            )
        ]

    def _pairs(self, names: list[str | None]) -> Longs:
        """Return the number of each name's (block, dataset) in the catalogue,
        ``NOT_THERE`` for null.
        """
        pairs = np.full(len(names), NOT_THERE, np.int64)
        present = [index for index, name in enumerate(names) if name]
        if present:
            pairs[present] = self.merge.inputs.lookup(
                [(names[index] or "").encode() for index in present]
            )
        return pairs

    def _remote(self, jobs: list[HtcondorJob], pairs: Longs) -> list[bool | None]:
        """Return whether the block of each job has no disk replica at its site; None
        without a block or a site.
        """
        replicas = self.merge.replicas
        if replicas is None:
            return [None] * len(jobs)
        blocks = np.full(len(jobs), -1, np.int64)
        is_known = pairs != NOT_THERE
        blocks[is_known] = np.asarray(self.merge.inputs.pair_blocks)[pairs[is_known]]
        is_here = replicas.has_replica(blocks, site_hashes([job.site for job in jobs])).tolist()
        return [
            None if not block_known or job.site == "unknown" else not has_replica
            for job, block_known, has_replica in zip(jobs, is_known.tolist(), is_here, strict=True)
        ]


class JobDataset(msgspec.Struct, frozen=True):
    """A job's dataset and block as DBS knows them, or the bin of a job without a dataset."""

    dataset: str | None
    block: str | None
    bin: str | None
    is_remote: bool | None


def unmatched_job_bin(job_input: JobInput) -> str:
    """Return the bin of a job whose dataset is not in DBS (rule 32)."""
    if job_input.bin or job_input.dataset is None:
        return job_input.bin or "no_input"
    return "user_file" if job_input.dataset.rpartition("/")[2] == "USER" else "not_in_dbs"


def _is_in(values: Longs, ordered: Longs) -> Any:
    """Return whether each value is in ``ordered``, which is sorted."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    positions = np.searchsorted(ordered, values)
    positions[positions == len(ordered)] = 0
    return ordered[positions] == values


def _empty(count: int) -> dict[str, Any]:
    return {name: [None] * count for name, _ in COLUMNS}
