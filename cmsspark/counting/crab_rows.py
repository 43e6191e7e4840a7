"""CRAB's rows, of which each is a file of a job for each block of the job: each file
counts once, and the seconds of a job once in a cell (rules 3 and 11).

A task cannot know which rows of a job other tasks have. It hands on its rows, and the
merge has all rows of a job in one partition. A row that names no job is one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base import buffers
from cmsspark.base.access import NO_JOB, AccessBatch, Packed, Quarantined, Remote
from cmsspark.base.arrays import Longs
from cmsspark.base.memory import trim
from cmsspark.counting import reconciliation
from cmsspark.counting.catalogue import (
    NOT_THERE,
    Numbers,
    Replicas,
    check_hash,
    hash_all,
    mixed_pairs,
    name_hash,
)
from cmsspark.counting.merge import USER_KEYS, number_texts
from cmsspark.counting.packing import pack
from cmsspark.counting.pre_aggregate import (
    ACCESS,
    BIN,
    COLUMNS,
    HASH_COLUMNS,
    UNMATCHED,
    Columns,
    GroupColumns,
    StreamAggregator,
    collect_measures,
    joined,
    packed_measures,
    record_batch,
    with_nulls,
)
from cmsspark.counting.sums import find_runs, sum_runs
from cmsspark.sources.formats.fast_json import Groups

if TYPE_CHECKING:
    import pyarrow as pa

#: The kind of a row of a job and file, and of rows with the sums of all jobs of the day.
CRAB, JOB_SUMS = "crab", "job_sums"
#: The bin of rows of a job and file that was counted already.
REPEATED: Final = "repeated"
_JOB_COLUMNS: Final = (
    ("id_hash", "long"),
    ("lfn_hash", "long"),
    ("file", "string"),
    ("position", "long"),
)
#: (name, type) of each column of a scan of CRAB: the hashes of the job and of the lfn,
#: the path of the log file and the number of the record in it. The second for the
#: shuffle join, which attaches the datasets later.
CRAB_COLUMNS: Final = (*COLUMNS, *_JOB_COLUMNS)
HASHED_CRAB_COLUMNS: Final = (*COLUMNS, *HASH_COLUMNS, *_JOB_COLUMNS)
#: Rows that a task keeps before they leave it.
ROWS_KEPT: Final = 1_000_000
#: An odd number, by which a product of 64 bits loses nothing.
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
#: Bits of the number of a record in its file.
_POSITION_BITS: Final = 40
#: Sums of the jobs of a day, and the times that they are of.
JOB_COUNT: Final = "job_count"
_TIMES: Final = ("cpu_ms", "wall_ms")


class CrabAggregator(StreamAggregator):
    """Collects the rows of one task. Nothing is summed."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = CRAB_COLUMNS
    _rows: list[Columns] = msgspec.field(default_factory=list)
    _row_count: int = 0
    _file: str = ""
    _files: dict[str, int] = msgspec.field(default_factory=dict)
    _prefixes: dict[str, int] = msgspec.field(default_factory=dict)
    _job_groups: GroupColumns = msgspec.field(default_factory=GroupColumns)

    def begin_file(self, path: str) -> None:
        """Note the file of the next batches."""
        self._file = path

    @property
    def rows_in_memory(self) -> int:
        """Rows in memory."""
        return self._row_count

    def _attach(self, batch: AccessBatch) -> None:
        names = [lfn.encode() for lfn in batch.lfns]
        self._add_rows(
            self._find(hash_all(names, len(names)), names),
            lambda row: batch.lfns[row],
            collect_measures(batch, np.arange(len(names))),
            np.array(batch.job_hashes, np.int64),
            np.array(batch.positions, np.int64),
        )

    def _attach_packed(self, packed: Packed) -> None:
        pairs = self._catalogue().lookup_hashes(packed.hashes, packed.name)
        self._add_rows(
            {"lfn": packed.hashes.view(np.int64), "pair": pairs.astype(np.int64)},
            lambda row: packed.name(row).decode(),
            packed_measures(packed, np.arange(packed.count)),
            *packed.jobs,
        )

    def _find(self, hashes: npt.NDArray[np.uint64], names: list[bytes]) -> Columns:
        """Return what names the file of each row."""
        pairs: Numbers = self._catalogue().lookup(names)
        return {"lfn": hashes.view(np.int64), "pair": pairs.astype(np.int64)}

    def _add_rows(
        self,
        names: Columns,
        name_of: Callable[[int], str],
        measures: Columns,
        jobs: Longs,
        positions: Longs,
    ) -> None:
        file = self._files.setdefault(self._file, len(self._files))
        nameless = np.flatnonzero(jobs == NO_JOB)
        if len(nameless):
            jobs = jobs.copy()
            # A record that names no job is a job of its own.
            numbers = (positions[nameless].astype(np.uint64) + np.uint64(1)) * _ODD
            jobs[nameless] = (numbers + np.uint64(name_hash(self._file.encode()))).view(np.int64)
        prefix = np.zeros(len(jobs), np.int64)
        unknown = np.flatnonzero(names["pair"] == NOT_THERE).tolist()
        for row, shown in zip(
            unknown, reconciliation.all_shown(map(name_of, unknown)), strict=True
        ):
            prefix[row] = self._prefixes.setdefault(shown, len(self._prefixes))
        self._rows.append(
            {
                **names,
                **{name: values for name, values in measures.items() if values is not None},
                "job": jobs,
                "prefix": prefix,
                "position": positions,
                "file": np.full(len(jobs), file, np.int64),
            }
        )
        self._row_count += len(jobs)

    def rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the rows that have not left the task."""
        return self._job_rows(groups, replicas, pseudonym) if self._row_count else {}

    def drain(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the rows, once they are many, else quarantined records, once they are many."""
        if self._row_count >= ROWS_KEPT:
            return self._job_rows(groups, replicas, pseudonym)
        return super().drain(groups, replicas, pseudonym)

    def _job_rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        rows, self._rows, self._row_count = joined(self._rows), [], 0
        self._job_groups.update(groups)
        count = len(rows["job"])
        zeros = np.zeros(count, np.int32)
        keys = self._job_groups.keys[rows["group"]]
        names, app_numbers = self._job_groups.names(groups, keys, pseudonym)
        is_in_dbs = rows["pair"] != NOT_THERE
        # A name is either that of a program or, of a file that is not in DBS, a prefix.
        apps = groups.apps.values_by_number
        return {
            "kind": buffers.dictionary_array([CRAB], zeros),
            "stream": buffers.dictionary_array([self.stream], zeros),
            **names,
            "app": buffers.dictionary_array(
                [*apps, *self._prefixes],
                np.where(is_in_dbs, app_numbers, len(apps) + rows["prefix"]),
            ),
            "nacc": buffers.from_numpy(rows["nacc"]),
            "cpu_ms": with_nulls(rows["cpu_ms"], rows["cpu_count"], count),
            "wall_ms": with_nulls(rows["wall_ms"], rows["wall_count"], count),
            "detail": buffers.dictionary_array([None], zeros),
            "id_hash": buffers.from_numpy(rows["job"]),
            "lfn_hash": buffers.from_numpy(rows["lfn"]),
            "file": buffers.dictionary_array(list(self._files), rows["file"]),
            "position": buffers.from_numpy(rows["position"]),
            "read_bytes": with_nulls(None, None, count),
            **self._file_columns(groups, rows, replicas),
        }

    def _file_columns(
        self, groups: Groups, rows: Columns, replicas: Replicas | None
    ) -> dict[str, Any]:
        """Return the dataset of each row, and whether it is remote."""
        catalogue, pairs, count = self._catalogue(), rows["pair"], len(rows["pair"])
        is_in_dbs = pairs != NOT_THERE
        in_dbs = np.flatnonzero(is_in_dbs)
        datasets = np.asarray(catalogue.pair_datasets)[pairs[in_dbs]].astype(np.int64)
        unique, positions = np.unique(datasets, return_inverse=True)
        names = [*catalogue.dataset_names(unique.astype(np.int32)), None]
        codes = np.full(count, len(unique), np.int64)
        codes[in_dbs] = positions.reshape(-1)
        remote = np.full(count, Remote.UNKNOWN, np.int64)
        remote[in_dbs] = self._job_groups.remote(
            rows["group"][in_dbs], catalogue.pair_blocks, pairs[in_dbs], replicas
        )
        return {
            "dataset_name": buffers.dictionary_array(names, codes),
            "remote_nacc": with_nulls(
                (remote == Remote.YES).astype(np.int64), remote != Remote.UNKNOWN, count
            ),
        }

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Quarantined]
    ) -> dict[str, list[Any]]:
        rows = super()._side_rows(named, records)
        nulls: list[Any] = [None] * len(rows["kind"])
        return {**dict.fromkeys((name for name, _ in self.columns), nulls), **rows}


class HashedCrabAggregator(CrabAggregator):
    """As :class:`CrabAggregator` for the shuffle join, which attaches datasets: rows
    carry both hashes of their lfn.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = HASHED_CRAB_COLUMNS

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its rows."""
        batch.unpack()
        super().add(batch)

    def _find(self, hashes: npt.NDArray[np.uint64], names: list[bytes]) -> Columns:
        checks = hash_all(names, len(names), check_hash).view(np.int64)
        # The join finds the files: of each it needs the prefix.
        pairs = np.full(len(names), NOT_THERE, np.int64)
        return {"lfn": hashes.view(np.int64), "check": checks, "pair": pairs}

    def _file_columns(
        self, groups: Groups, rows: Columns, replicas: Replicas | None
    ) -> dict[str, Any]:
        count = len(rows["job"])
        kinds = self._job_groups.kinds(rows["group"])
        _, apps, _ = groups.rows.columns(0)
        return {
            "dataset_name": buffers.dictionary_array([None], np.zeros(count, np.int32)),
            "app": buffers.dictionary_array(groups.apps.values_by_number, apps[rows["group"]]),
            "remote_nacc": with_nulls(None, None, count),
            "hash": buffers.from_numpy(rows["lfn"]),
            "check": buffers.from_numpy(rows["check"]),
            "block_remote": buffers.from_numpy(kinds),
            "prefix": buffers.dictionary_array(list(self._prefixes), rows["prefix"]),
        }


def merge_rows(batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan with those of CRAB's jobs merged: each file of a job
    once, the seconds of a job once in each cell.

    All rows of a job are among the batches; where None is one, before it: they are then
    merged by a thread while the other rows come.
    """
    of_jobs: list[pa.RecordBatch] = []
    merged: Future[list[pa.RecordBatch]] | None = None
    with ThreadPoolExecutor(1) as thread:
        for batch in batches:
            if batch is None:
                merged = thread.submit(_merge_ahead, of_jobs)
            elif "lfn_hash" in batch.schema.names:
                yield from _apart(batch, [name for name, _ in COLUMNS], of_jobs)
            else:
                yield batch
        yield from merged.result() if merged else _merged(of_jobs)


def _merge_ahead(of_jobs: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    rows = list(_merged(of_jobs))
    # The other rows of the scan need what the merge has freed.
    trim()
    return rows


def _merged(of_jobs: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not of_jobs:
        return
    rows = _JobRows.gather(of_jobs)
    of_jobs.clear()  # they are copied
    first = rows.first_of_each_file()
    yield _sums_of_days(rows, first)
    unmatched = first[rows.codes["dataset_name"][first] == 0]
    codes = (rows.codes[name][unmatched].tolist() for name in ("app", "site_name"))
    counts = Counter(zip(*codes, strict=True))
    yield _side_rows(
        rows,
        [
            (UNMATCHED, rows.texts["app"][prefix], count, rows.texts["site_name"][site])
            for (prefix, site), count in counts.items()
        ],
    )
    yield _once_a_cell(rows, first[rows.codes["dataset_name"][first] > 0])


def first_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan for the shuffle join, with ``COLUMNS`` and
    ``HASH_COLUMNS``: of CRAB's jobs each file once, with the job in ``detail``.
    """
    import pyarrow as pa

    names = [name for name, _ in (*COLUMNS, *HASH_COLUMNS)]
    of_jobs: list[pa.RecordBatch] = []
    for batch in batches:
        yield from _apart(batch, names, of_jobs)
    if not of_jobs:
        return
    rows = _JobRows.gather(of_jobs)
    first = rows.first_of_each_file()
    sums = _sums_of_days(rows, first)
    yield record_batch(
        {name: sums[name] if name in sums.schema.names else [None] * len(sums) for name in names},
        (*COLUMNS, *HASH_COLUMNS),
    )
    chosen = pa.Table.from_batches(of_jobs).take(buffers.from_numpy(first.astype(np.int64)))
    kinds = buffers.dictionary_array([ACCESS], np.zeros(len(first), np.int32))
    for name, column in (
        ("kind", kinds.dictionary_decode()),
        ("detail", chosen["id_hash"].cast(pa.string())),
    ):
        chosen = chosen.set_column(chosen.schema.names.index(name), name, column)
    for batch in chosen.select(names).to_batches():
        yield record_batch(dict(zip(names, batch.columns, strict=True)), (*COLUMNS, *HASH_COLUMNS))


def merge_joined_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of ``COLUMNS``, after a shuffle join, with the seconds of each of
    CRAB's jobs once in a cell. All rows of a cell are among the batches.
    """
    import pyarrow.compute as pc

    of_jobs: list[pa.RecordBatch] = []
    for batch in batches:
        if batch["detail"].null_count == batch.num_rows:
            yield batch
            continue
        is_job = pc.and_(
            pc.equal(batch["kind"], buffers.scalar(ACCESS, "string")), pc.is_valid(batch["detail"])
        )
        if pc.any(is_job).as_py():
            of_jobs.append(batch.filter(is_job))
        yield batch.filter(pc.invert(is_job))
    if of_jobs:
        rows = _JobRows.gather(of_jobs)
        yield _once_a_cell(rows, np.arange(len(rows.job)))


def _apart(
    batch: pa.RecordBatch, names: Sequence[str], of_jobs: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Add the rows of jobs to ``of_jobs`` and yield the other ones with columns ``names``."""
    import pyarrow.compute as pc

    is_job = pc.equal(batch["kind"], buffers.scalar(CRAB, "string"))
    if pc.all(is_job).as_py():
        of_jobs.append(batch)
        return
    if pc.any(is_job).as_py():
        of_jobs.append(batch.filter(is_job))
    yield batch.filter(pc.invert(is_job)).select(names)


class _JobRows(msgspec.Struct, frozen=True):
    """Rows of jobs in columns; ``codes`` number the texts, null is 0. Null times are -1."""

    stream: str
    texts: dict[str, list[str | None]]
    codes: dict[str, Longs]
    job: Longs
    lfn: Longs
    position: Longs
    remote: Longs
    times: dict[str, Longs]

    @classmethod
    def gather(cls, batches: Sequence[pa.RecordBatch]) -> _JobRows:
        """Return the rows of all batches."""
        import pyarrow as pa

        def numbers(name: str, null: int = 0) -> Longs:
            chunks = pa.chunked_array([batch[name] for batch in batches], pa.int64())
            return buffers.to_numpy(chunks, np.int64, null)

        has_files = "file" in batches[0].schema.names
        texts, codes = {}, {}
        for name in (*USER_KEYS[1:], "file" if has_files else "detail"):
            texts[name], numbers_of = number_texts([batch[name] for batch in batches])
            codes[name] = numbers_of.astype(np.int64)
        return cls(
            batches[0]["stream"][0].as_py(),
            texts,
            codes,
            numbers("id_hash") if has_files else codes["detail"],
            numbers("lfn_hash") if has_files else codes["detail"],
            numbers("position") if has_files else codes["detail"],
            numbers("remote_nacc", -1),
            {name: numbers(name, -1) for name in _TIMES},
        )

    def first_of_each_file(self) -> npt.NDArray[np.intp]:
        """Return the first row of each file of a job, by the order of log files, which
        is that of their paths.
        """
        keys = self.job.view(np.uint64) ^ (self.lfn.view(np.uint64) * _ODD)
        runs = find_runs(keys.view(np.int64))
        orders = ((self.codes["file"] << _POSITION_BITS) + self.position)[runs.order]
        least = np.minimum.reduceat(orders, runs.starts)
        sizes = np.diff(np.append(runs.starts, len(orders)))
        first: npt.NDArray[np.intp] = runs.order[orders == np.repeat(least, sizes)]
        return first


def _once_a_cell(rows: _JobRows, chosen: npt.NDArray[np.intp]) -> pa.RecordBatch:
    """Return accesses of the chosen rows: one row for each cell and job, with the
    largest times of its rows.
    """
    cells, _ = pack([rows.codes[key][chosen] for key in USER_KEYS[1:]], len(chosen))
    # One number for both, as jobs are hashes already: to sort it takes a quarter of the
    # time of sorting by the one and the other.
    order, starts = find_runs(mixed_pairs(cells, rows.job[chosen].view(np.uint64)).view(np.int64))
    in_order = chosen[order]
    first = in_order[starts]
    count, zeros = len(first), np.zeros(len(first), np.int32)
    remote = rows.remote[in_order]
    columns: dict[str, Any] = {
        "kind": buffers.dictionary_array([ACCESS], zeros),
        "stream": buffers.dictionary_array([rows.stream], zeros),
        "nacc": buffers.from_numpy(np.diff(np.append(starts, len(order))).astype(np.int64)),
        "remote_nacc": with_nulls(
            _reduced(np.add, np.maximum(remote, 0), starts),
            _reduced(np.add, (remote >= 0).astype(np.int64), starts),
            count,
        ),
        "read_bytes": with_nulls(None, None, count),
        "detail": buffers.dictionary_array([None], zeros),
    }
    for key in USER_KEYS[1:]:
        columns[key] = buffers.dictionary_array(rows.texts[key], rows.codes[key][first])
    for name, values in rows.times.items():
        largest = _reduced(np.maximum, values[in_order], starts)
        columns[name] = buffers.from_numpy(np.maximum(largest, 0), largest >= 0)
    return record_batch(columns, COLUMNS, dictionaries=True)


def _reduced(function: np.ufunc, values: Longs, starts: npt.NDArray[np.intp]) -> Longs:
    reduced: Longs = function.reduceat(values, starts) if len(starts) else values[:0]
    return reduced


def _sums_of_days(rows: _JobRows, first: npt.NDArray[np.intp]) -> pa.RecordBatch:
    """Return side rows: how many rows repeat a file of a job, and the number and the
    seconds of all jobs, each once.
    """
    runs = find_runs(rows.job[first])
    sums = {JOB_COUNT: len(runs.starts)}
    for name, values in rows.times.items():
        largest = np.maximum(_reduced(np.maximum, values[first][runs.order], runs.starts), 0)
        sums[name] = int(sum_runs(largest, np.zeros(1, np.intp), name, is_capped=True)[0])
    repeated = (BIN, REPEATED, len(rows.job) - len(first), None)
    of_jobs = ((JOB_SUMS, name, count, None) for name, count in sums.items())
    return _side_rows(rows, [repeated, *of_jobs])


def _side_rows(
    rows: _JobRows, named: Sequence[tuple[str, str | None, int, str | None]]
) -> pa.RecordBatch:
    """Return side rows (kind, name, count, site): the name is in ``app``, the count in
    ``nacc``.
    """
    columns: dict[str, Any] = {name: [None] * len(named) for name, _ in COLUMNS}
    columns["stream"] = [rows.stream] * len(named)
    for name, values in zip(
        ("kind", "app", "nacc", "site_name"), zip(*named, strict=True), strict=False
    ):
        columns[name] = list(values)
    return record_batch(columns, COLUMNS)
