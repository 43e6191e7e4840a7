"""The merges in Spark's tasks. They run in Python workers, without Spark.

Accesses are merged by the keys of the report, jobs by the hash of their id, a task for
each partition. The rows of the tables leave a task encoded, many in one value.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base import buffers
from cmsspark.base.arrays import Longs
from cmsspark.base.schemas import stored_table
from cmsspark.counting.crab_rows import merge_joined_rows, merge_rows
from cmsspark.counting.htcondor_jobs import EARLIER, JOB, JOB_COLUMNS
from cmsspark.counting.merge import KEYS, merge
from cmsspark.counting.pre_aggregate import COLUMNS, QUARANTINE, record_batch
from cmsspark.engines.job_work import HtcondorMergeSpec, JobTables
from cmsspark.sources.registry import JOB_IDS, JOB_TABLES

if TYPE_CHECKING:
    import pyarrow as pa


# Rows as values that Spark moves: columns of some thousand rows encoded in one, for one
# partition of an exchange.

#: (name, Spark type) of the columns of packed rows. ``part`` decides on the partition:
#: a number for each.
PACKED_COLUMNS: Final = (("part", "int"), ("packed", "binary"))
#: Rows of a table that are encoded together.
_PACKED_ROWS: Final = 250_000
#: Bytes of rows that are encoded together where they have records of jobs or details
#: (quarantined records have). There may be any number of them, and Spark hands up to
#: 10,000 values to a task at once.
_PACKED_BYTES: Final = 64 * 1024


def pack_batch(batch: pa.RecordBatch, part_numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch packed, with ``PACKED_COLUMNS``.

    All records of a job are for one of the partitions, and all other rows with the same
    keys of the report.
    """
    import pyarrow as pa

    if not batch.num_rows:
        return
    numbers = _partitions(batch, len(part_numbers))
    order = np.argsort(numbers, kind="stable")
    in_order = pa.Table.from_batches([batch.take(buffers.from_numpy(order))])
    counts = np.bincount(numbers, minlength=len(part_numbers))
    starts = np.cumsum(counts) - counts
    is_long = "record" in batch.schema.names or batch["detail"].null_count < batch.num_rows
    limit = max(1, _PACKED_BYTES * batch.num_rows // batch.nbytes) if is_long else _PACKED_ROWS
    parts, packed = [], []
    for partition in np.flatnonzero(counts).tolist():
        rows = in_order.slice(int(starts[partition]), int(counts[partition]))
        for piece in slice_rows(rows, limit):
            parts.append(part_numbers[partition])
            packed.append(encode_rows(_with_own_texts(piece)))
    columns = [buffers.from_numpy(np.array(parts, np.int32)), buffers.binary(packed)]
    yield pa.RecordBatch.from_arrays(columns, [name for name, _ in PACKED_COLUMNS])


def _partitions(batch: pa.RecordBatch, count: int) -> Longs:
    """Return the partition of each row, of ``count``."""
    import pyarrow as pa

    if "id_hash" in batch.schema.names:
        return buffers.to_numpy(batch["id_hash"], np.int64) % count
    hashes = np.zeros(batch.num_rows, np.uint64)
    for key in KEYS if count > 1 else ():
        column = batch[key]
        texts = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        # The last is that of null, whose number is -1.
        codes = np.array(
            [*(zlib.crc32(text.encode()) for text in texts.dictionary.to_pylist()), 0], np.uint64
        )
        hashes = (
            hashes * np.uint64(1_000_003) + codes[buffers.to_numpy(texts.indices, np.int32, -1)]
        )
    return (hashes % np.uint64(count)).astype(np.int64)


def _with_own_texts(rows: pa.Table) -> pa.Table:
    """Return rows whose dictionaries have only the texts that occur."""
    import pyarrow as pa

    for number, kind in enumerate(rows.schema.types):
        if pa.types.is_dictionary(kind):
            texts = rows.column(number).cast(pa.string()).dictionary_encode()
            rows = rows.set_column(number, rows.schema.names[number], texts)
    return rows


def slice_rows(table: pa.Table, count: int = _PACKED_ROWS) -> Iterator[pa.Table]:
    """Yield the rows of a table, as many as are encoded together."""
    for start in range(0, table.num_rows, count):
        yield table.slice(start, count)


def encode_rows(rows: pa.Table) -> bytes:
    """Return rows as a compressed Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def decode_rows(packed: bytes) -> pa.Table:
    """Return the rows of a compressed Arrow stream."""
    import pyarrow as pa

    with pa.ipc.open_stream(packed) as stream:
        return stream.read_all()


def unpack_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the column ``packed`` of the batches holds, and batches
    without one as they are.
    """
    for batch in batches:
        if "packed" not in batch.schema.names:
            yield batch
            continue
        for packed in batch.column("packed"):
            yield from decode_rows(packed.as_buffer()).to_batches()


def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the column ``packed`` of the batches holds, with plain texts,
    as Spark takes them.
    """
    for batch in unpack_batches(batches):
        names = batch.schema.names
        yield record_batch(
            dict(zip(names, batch.columns, strict=True)), [(name, "") for name in names]
        )


def partition_numbers(count: int) -> list[int]:
    """Return numbers that Spark's hash partitioning spreads over ``count`` partitions,
    one in each.
    """
    numbers: dict[int, int] = {}
    number = 0
    while len(numbers) < count:
        numbers.setdefault(_murmur3(number) % count, number)
        number += 1
    return [numbers[partition] for partition in range(count)]


def _murmur3(number: int) -> int:
    """Return Spark's hash of an int that is not negative: Murmur3 with the seed 42, signed."""
    mask = 0xFFFFFFFF
    mixed = number * 0xCC9E2D51 & mask
    mixed = (mixed << 15 | mixed >> 17) & mask
    code = 42 ^ (mixed * 0x1B873593 & mask)
    code = (code << 13 | code >> 19) & mask
    code = (code * 5 + 0xE6546B64) & mask
    code ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        code = (code ^ code >> shift) * factor & mask
    return code - (1 << 32) if code >> 31 else code


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
#: table ``table``, of which there are ``row_count``.
MERGED_JOB_COLUMNS: Final = (*PACKED_COLUMNS, ("table", "string"), ("row_count", "bigint"))


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
        rows_of_table = tables.table(table, day)
        # All ids together: whether the driver takes them goes by their number.
        limit = max(1, rows_of_table.num_rows) if table == JOB_IDS else _PACKED_ROWS
        for rows in slice_rows(rows_of_table, limit):
            yield _job_batch(
                buffers.from_numpy(np.zeros(1, np.int32)),
                buffers.binary([encode_rows(rows)]),
                table,
                rows.num_rows,
            )


def pack_earlier_ids(
    part_numbers: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield stored ids of the jobs of the day before, packed as a scan of its logs packs
    them. ``part_numbers``: of the merge of jobs.
    """
    for batch in batches:
        hashes = batch.column("id_hash")
        count = len(hashes)
        columns = {name: buffers.array([None] * count, kind) for name, kind in JOB_COLUMNS}
        columns |= {"kind": buffers.array([EARLIER] * count, "string"), "id_hash": hashes}
        yield from pack_batch(record_batch(columns, JOB_COLUMNS), part_numbers)


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


def _job_batch(
    parts: pa.Array, packed: pa.Array, table: str | None, row_count: int = 0
) -> pa.RecordBatch:
    import pyarrow as pa

    tables = buffers.array([table] * len(parts), "string")
    counts = buffers.from_numpy(np.full(len(parts), row_count, np.int64))
    columns = [parts, packed, tables, counts]
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
