"""The merges in Spark's tasks. They run in Python workers, without Spark.

Accesses are merged by the keys of the report, jobs by the hash of their id, a task for
each partition. The rows of the tables leave a task encoded, many in one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base import buffers
from cmsspark.base.schemas import stored_table
from cmsspark.counting.crab_rows import merge_joined_rows, merge_rows
from cmsspark.counting.htcondor_jobs import EARLIER, JOB
from cmsspark.counting.merge import merge
from cmsspark.counting.pre_aggregate import COLUMNS, QUARANTINE
from cmsspark.engines.job_work import HtcondorMergeSpec, JobTables
from cmsspark.engines.packed_rows import (
    PACKED_COLUMNS,
    encode_rows,
    pack_batch,
    slice_rows,
    unpack_batches,
)
from cmsspark.sources.registry import JOB_TABLES

if TYPE_CHECKING:
    import pyarrow as pa

#: Kinds of encoded rows: those of the partials, of the report, and of pairs of sites.
PARTIALS, REPORT, PAIRS = "partials", "report", "site_pairs"
#: (name, Spark type) of each column of a merge's result. A side row has its name in
#: ``app`` and its count in ``nacc``. Encoded rows have their number in ``nacc`` and the
#: rows in ``packed``, as an Arrow stream.
MERGED_COLUMNS: Final = (
    ("kind", "string"),
    ("stream", "string"),
    ("app", "string"),
    ("nacc", "bigint"),
    ("detail", "string"),
    ("packed", "binary"),
)
#: (name, type) of each column of a merge of jobs: packed rows of accesses, or of the
#: table ``table``.
MERGED_JOB_COLUMNS: Final = (*PACKED_COLUMNS, ("table", "string"))


def merge_accesses(day: date, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge one partition: batches of ``pre_aggregate.COLUMNS``, packed or not, become
    those of ``MERGED_COLUMNS``.
    """
    aggregated = merge(merge_joined_rows(unpack_batches(batches)))
    side: list[tuple[Any, ...]] = [(*row, None) for row in aggregated.side_rows()]
    side += [
        (QUARANTINE, stream, "malformed", 0, detail, None)
        for stream, detail in aggregated.quarantined
    ]
    yield from _batch(side)
    for kind, table in (
        (PARTIALS, aggregated.partials(day, stored_table("partials"))),
        (REPORT, aggregated.report(day, stored_table("data_aggregation"))),
        (PAIRS, aggregated.site_pairs(day, stored_table("site_pairs"))),
    ):
        for rows in slice_rows(table):
            yield from _batch([(kind, None, None, rows.num_rows, None, encode_rows(rows))])


def merge_jobs(
    spec: HtcondorMergeSpec,
    day: date,
    part_numbers: Sequence[int],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Merge one partition: packed batches of ``jobs.JOB_COLUMNS`` become batches of
    ``MERGED_JOB_COLUMNS``.

    ``part_numbers``: of the merge of accesses.
    """
    records: list[bytes] = []
    earlier: list[int] = []
    for batch in unpack_batches(batches):
        kinds = batch["kind"].to_pylist()
        access_rows = [row for row, kind in enumerate(kinds) if kind not in (JOB, EARLIER)]
        if access_rows:
            accesses = batch.take(buffers.array(access_rows, "long")).select(
                [name for name, _ in COLUMNS]
            )
            yield from _packed(accesses, part_numbers)
        columns = zip(
            kinds, batch["id_hash"].to_pylist(), batch["record"].to_pylist(), strict=True
        )
        for kind, number, record in columns:
            if kind == JOB:
                records.append(record)
            elif kind == EARLIER:
                earlier.append(number)
    if not records:
        return
    merged = spec.open().choose(records, earlier)
    for batch in merged.batches():
        yield from _packed(batch, part_numbers)
    tables = JobTables()
    tables.add(merged)
    for table in JOB_TABLES:
        for rows in slice_rows(tables.table(table, day)):
            yield _job_batch(
                buffers.from_numpy(np.zeros(1, np.int32)),
                buffers.binary([encode_rows(rows)]),
                table,
            )


def merge_crab(
    part_numbers: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Merge one partition of rows of jobs: packed batches of ``crab_rows.CRAB_COLUMNS``
    become packed accesses. ``part_numbers``: of the merge of accesses.
    """
    for batch in merge_rows(unpack_batches(batches)):
        yield from pack_batch(batch, part_numbers)


def _packed(accesses: pa.RecordBatch, part_numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    for packed in pack_batch(accesses, part_numbers):
        yield _job_batch(packed["part"], packed["packed"], None)


def _job_batch(parts: pa.Array, packed: pa.Array, table: str | None) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [parts, packed, buffers.array([table] * len(parts), "string")]
    return pa.RecordBatch.from_arrays(columns, [name for name, _ in MERGED_JOB_COLUMNS])


def _batch(rows: list[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if rows:
        *texts, packed = zip(*rows, strict=True)
        kinds = {"string": "string", "bigint": "long"}
        columns = [
            buffers.array(values, kinds[kind])
            for values, (_, kind) in zip(texts, MERGED_COLUMNS, strict=False)
        ]
        columns.append(buffers.binary(packed))
        yield pa.RecordBatch.from_arrays(columns, [name for name, _ in MERGED_COLUMNS])
