"""The merges in Spark's tasks. They run in Python workers, without Spark.

Accesses are merged by the keys of the report, jobs by the hash of their id, a task for each partition. The rows of the
tables leave a task encoded, many in one value, so that the JVM stores and moves them without decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import buffers
from cmsspark.base.schemas import stored_table
from cmsspark.counting.htcondor_jobs import EARLIER, JOB
from cmsspark.counting.merge import merge
from cmsspark.counting.pre_aggregate import COLUMNS, QUARANTINE, record_batch
from cmsspark.engines.job_work import HtcondorMergeSpec, JobTables
from cmsspark.sources.registry import JOB_TABLES

if TYPE_CHECKING:
    import pyarrow as pa

#: Kinds of encoded rows: those of the partials, of the report, and of pairs of sites.
PARTIALS, REPORT, PAIRS = "partials", "report", "site_pairs"
#: (name, Spark type) of each column of a merge's result. A side row has its name in ``app`` and its count in ``nacc``.
#: Encoded rows have their number in ``nacc`` and the rows in ``packed``, as an Arrow stream.
MERGED_COLUMNS: Final = (
    ("kind", "string"),
    ("stream", "string"),
    ("app", "string"),
    ("nacc", "bigint"),
    ("detail", "string"),
    ("packed", "binary"),
)
#: (name, type) of each column of a merge of jobs. A row of a table of jobs has the table's name in ``kind`` and encoded
#: rows in ``packed``; all other rows are as those of accesses.
MERGED_JOB_COLUMNS: Final = (*COLUMNS, ("packed", "binary"))
#: Rows that are encoded together.
_PACKED_ROWS: Final = 250_000


@dataclass(frozen=True)
class MergeTask:
    """Merges one partition: batches of ``pre_aggregate.COLUMNS`` become batches of ``MERGED_COLUMNS``."""

    day: date

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        aggregated = merge(batches)
        side: list[tuple[Any, ...]] = [(*row, None) for row in aggregated.side_rows()]
        side += [(QUARANTINE, stream, "malformed", 0, detail, None) for stream, detail in aggregated.quarantined]
        yield from _batch(side)
        for kind, table in (
            (PARTIALS, aggregated.partials(self.day, stored_table("partials"))),
            (REPORT, aggregated.report(self.day, stored_table("data_aggregation"))),
            (PAIRS, aggregated.site_pairs(self.day, stored_table("site_pairs"))),
        ):
            for rows in slice_rows(table):
                yield from _batch([(kind, None, None, rows.num_rows, None, encode_rows(rows))])


@dataclass(frozen=True)
class HtcondorMergeTask:
    """Merges one partition: batches of ``jobs.JOB_COLUMNS`` become batches of ``MERGED_JOB_COLUMNS``."""

    spec: HtcondorMergeSpec
    day: date

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records: list[bytes] = []
        earlier: list[int] = []
        for batch in batches:
            kinds = batch["kind"].to_pylist()
            access_rows = [row for row, kind in enumerate(kinds) if kind not in (JOB, EARLIER)]
            if access_rows:
                accesses = batch.take(buffers.array(access_rows, "long")).select([name for name, _ in COLUMNS])
                yield _unpacked(accesses)
            columns = zip(kinds, batch["id_hash"].to_pylist(), batch["record"].to_pylist(), strict=True)
            for kind, number, record in columns:
                if kind == JOB:
                    records.append(record)
                elif kind == EARLIER:
                    earlier.append(number)
        if not records:
            return
        merged = self.spec.open().choose(records, earlier)
        for batch in merged.batches():
            yield _unpacked(batch)
        tables = JobTables()
        tables.add(merged)
        for table in JOB_TABLES:
            for rows in slice_rows(tables.table(table, self.day)):
                packed: dict[str, list[Any]] = {name: [None] for name, _ in MERGED_JOB_COLUMNS}
                yield record_batch({**packed, "kind": [table], "packed": [encode_rows(rows)]}, MERGED_JOB_COLUMNS)


def _unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of accesses with the column of encoded rows, which is null."""
    import pyarrow as pa

    arrays = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    arrays.append(buffers.binary([None] * batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, [name for name, _ in MERGED_JOB_COLUMNS])


def slice_rows(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table, as many as are encoded together."""
    for start in range(0, table.num_rows, _PACKED_ROWS):
        yield table.slice(start, _PACKED_ROWS)


def _batch(rows: list[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if rows:
        *texts, packed = zip(*rows, strict=True)
        kinds = {"string": "string", "bigint": "long"}
        columns = [buffers.array(values, kinds[kind]) for values, (_, kind) in zip(texts, MERGED_COLUMNS, strict=False)]
        columns.append(buffers.binary(packed))
        yield pa.RecordBatch.from_arrays(columns, [name for name, _ in MERGED_COLUMNS])


def encode_rows(rows: pa.Table) -> bytes:
    """Return rows as a compressed Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def decode_rows(packed: bytes) -> pa.Table:
    """Return the rows of a compressed Arrow stream."""
    import pyarrow as pa

    with pa.ipc.open_stream(packed) as stream:
        return stream.read_all()


def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the column ``packed`` of the batches holds."""
    for batch in batches:
        for packed in batch.column("packed").to_pylist():
            yield from decode_rows(packed).to_batches()
