"""The merge of jobs in Spark's tasks: one for each partition by the hash of the job's id. Runs in Python workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import buffers
from cmsspark.counting.htcondor_jobs import EARLIER, JOB
from cmsspark.counting.pre_aggregate import COLUMNS, record_batch
from cmsspark.engines.job_work import JobTables, JobWork
from cmsspark.engines.merge_task import encode_rows, slices_of
from cmsspark.sources.registry import JOB_TABLES

if TYPE_CHECKING:
    import pyarrow as pa

#: (name, type) of each column of a merge's result. A row of a table of jobs has the table's name in ``kind`` and
#: encoded rows in ``packed``; all other rows are as those of accesses.
MERGED_JOB_COLUMNS: Final = (*COLUMNS, ("packed", "binary"))


@dataclass(frozen=True)
class JobMergeTask:
    """Merges one partition: batches of ``jobs.JOB_COLUMNS`` become batches of ``MERGED_JOB_COLUMNS``."""

    work: JobWork
    day: date

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records: list[bytes] = []
        earlier: list[int] = []
        for batch in batches:
            kinds = batch["kind"].to_pylist()
            others = [row for row, kind in enumerate(kinds) if kind not in (JOB, EARLIER)]
            if others:
                rest = batch.take(buffers.array(others, "long")).select([name for name, _ in COLUMNS])
                yield _unpacked(rest)
            columns = zip(kinds, batch["id_hash"].to_pylist(), batch["record"].to_pylist(), strict=True)
            for kind, number, record in columns:
                if kind == JOB:
                    records.append(record)
                elif kind == EARLIER:
                    earlier.append(number)
        if not records:
            return
        merged = self.work.counts().merge(records, earlier)
        for batch in merged.batches():
            yield _unpacked(batch)
        tables = JobTables()
        tables.add(merged)
        for table in JOB_TABLES:
            for rows in slices_of(tables.table(table, self.day)):
                packed: dict[str, list[Any]] = {name: [None] for name, _ in MERGED_JOB_COLUMNS}
                yield record_batch({**packed, "kind": [table], "packed": [encode_rows(rows)]}, MERGED_JOB_COLUMNS)


def _unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of accesses with the column of encoded rows, which is null."""
    import pyarrow as pa

    arrays = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    arrays.append(buffers.binary([None] * batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, [name for name, _ in MERGED_JOB_COLUMNS])
