"""The merge of jobs, as the runners start it: partitions of records by job, on disk
where they are many.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cmsspark.base import buffers
from cmsspark.base.arrays import Longs
from cmsspark.base.errors import OutputError
from cmsspark.base.private_folders import locked_folder
from cmsspark.base.schemas import stored_table
from cmsspark.counting.catalogue import Catalogue, Replicas
from cmsspark.counting.htcondor_jobs import EARLIER, JOB, CrabSums, HtcondorMerge, MergedJobs
from cmsspark.counting.pre_aggregate import COLUMNS
from cmsspark.engines.broadcast_files import local_folder
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.sources.registry import JOB_IDS

if TYPE_CHECKING:
    import pyarrow as pa

#: Partitions on disk: a day of 5 million records has 80,000 in each.
PARTITIONS: Final = 64
#: Bytes of records that are held before they go to disk.
HELD_BYTES: Final = 64 * 1024 * 1024
_SIZE: Final = struct.Struct("<I")


class HtcondorMergeSpec(msgspec.Struct, frozen=True):
    """What the merge of a day's jobs needs. ``inputs`` and ``replicas``: folders of snapshots.

    ``earlier``: hashes of the ids of the jobs of the day before, sorted; empty where
    they are read with the day's logs, or where there are none. ``spool``: the folder
    for records that do not fit in memory.
    """

    stream: str
    inputs: str
    replicas: str | None
    pseudonyms: Pseudonyms
    earlier: Longs
    spool: str

    def open(self) -> HtcondorMerge:
        """Open the snapshots, which lie on this host."""
        replicas = Replicas(local_folder(self.replicas)) if self.replicas else None
        inputs = Catalogue(local_folder(self.inputs))
        return HtcondorMerge(
            self.stream, inputs, replicas, cache(self.pseudonyms.pseudonym), self.earlier
        )


class JobTables(msgspec.Struct):
    """The tables beside the report, collected from all partitions."""

    crab: CrabSums = msgspec.field(default_factory=CrabSums)
    _ids: list[Longs] = msgspec.field(default_factory=list)

    def add(self, merged: MergedJobs) -> None:
        """Add a merged partition, when its batches have ended."""
        self._ids.append(merged.ids)
        self.crab.add_sums(merged.crab)

    def add_rows(self, table: str, rows: pa.Table) -> None:
        """Add the rows of one of the tables of a partition."""
        if table == JOB_IDS:
            self._ids.append(buffers.to_numpy(rows.column("id_hash"), np.int64))
        else:
            self.crab.add_rows(rows)

    def table(self, name: str, day: date) -> pa.Table:
        """Return a table of ``JOB_TABLES``. Raises DataError (65) where a sum exceeds 64 bits."""
        import pyarrow as pa

        schema = stored_table(name)
        if name != JOB_IDS:
            return self.crab.table(day, schema)
        ids = np.unique(np.concatenate([np.zeros(0, np.int64), *self._ids]))
        return pa.table({"id_hash": buffers.from_numpy(ids)}, schema=schema.arrow())


class JobSpool:
    """Records of jobs in partitions by the hash of their id, so that all records of a
    job are in one.

    The files lie in a private folder that is removed in the end, after a kill by a
    later run: records have the names of users. Raises OutputError (73) where they
    cannot be written.
    """

    def __init__(self, folder: str, held_bytes: int = HELD_BYTES) -> None:
        self._parent = Path(folder)
        self._folder: Path | None = None
        self._stack = ExitStack()
        self._limit = held_bytes
        self._records: dict[int, list[bytes]] = {}
        self._bytes = 0
        self._earlier: list[Longs] = []

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take the records out of a batch of ``jobs.JOB_COLUMNS``; return its other rows."""
        kinds = Counter(batch["kind"].to_pylist())
        if not kinds.keys() & {JOB, EARLIER}:
            return batch.select([name for name, _ in COLUMNS])
        hashes = buffers.to_numpy(batch["id_hash"], np.int64)
        # Rows of jobs leave a task in batches of their own.
        if kinds.keys() == {EARLIER}:
            self._earlier.append(np.unique(hashes))
            return None
        for number, record in zip(
            (hashes & (PARTITIONS - 1)).tolist(), batch["record"].to_pylist(), strict=True
        ):
            self._records.setdefault(number, []).append(record)
        self._bytes += batch["record"].nbytes
        if self._bytes > self._limit:
            self._write()
        return None

    def _write(self) -> None:
        try:
            if self._folder is None:
                self._folder = self._stack.enter_context(
                    locked_folder(self._parent, "jobs-", mode=0o700)
                )
            for number, records in self._records.items():
                with (self._folder / str(number)).open("ab") as sink:
                    sink.write(b"".join(_SIZE.pack(len(record)) + record for record in records))
        except OSError as error:
            raise OutputError(
                "there is no room for the records of jobs, which are kept on disk until they are merged",
                where=self._parent,
                found=error.strerror,
                next_step="free 500 bytes for each ended job, or name another folder in the settings, as cache_dir",
            ) from None
        self._records, self._bytes = {}, 0

    def partitions(self) -> Iterator[list[bytes]]:
        """Yield the records of each partition that has any."""
        for number in range(PARTITIONS):
            records = self._records.pop(number, [])
            file = None if self._folder is None else self._folder / str(number)
            if file is not None and file.exists():
                records += _records(file.read_bytes())
            if records:
                yield records

    def earlier(self) -> Longs:
        """Return hashes of the ids of the jobs of the day before that were read, sorted."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self._earlier]))

    def close(self) -> None:
        """Remove the files."""
        self._stack.close()


def _records(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size
        yield content[at : at + size]
        at += size


def without_jobs(
    batches: Iterable[pa.RecordBatch], spec: HtcondorMergeSpec, tables: JobTables
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan with those of jobs merged; ``tables`` receives their
    tables. Needs one process.
    """
    spool = JobSpool(spec.spool)
    try:
        for batch in batches:
            accesses = spool.add(batch) if "record" in batch.schema.names else batch
            if accesses is not None:
                yield accesses
        merge = spec.open()
        earlier = spool.earlier()
        merge = (
            replace(merge, earlier=np.union1d(merge.earlier, earlier)) if len(earlier) else merge
        )
        for records in spool.partitions():
            merged = merge.choose(records)
            yield from merged.batches()
            tables.add(merged)
    finally:
        spool.close()
