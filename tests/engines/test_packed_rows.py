"""Packed rows: unpacked they are the rows, and those of one key are in one partition,
however a task numbers texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from cmsspark.counting.htcondor_jobs import JOB_COLUMNS
from cmsspark.counting.merge import KEYS
from cmsspark.counting.pre_aggregate import COLUMNS, record_batch
from cmsspark.engines import merge_task
from cmsspark.engines.merge_task import decode_batches, decode_rows, pack_batch, unpack_batches

NUMBERS = (7, 3, 5)


def access(number: int, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {name: None for name, _ in COLUMNS}
    names = {
        "dataset_name": f"/ä{number % 11}/b/RAW",
        "site_name": None if number % 7 == 0 else f"T2_{number % 5}",
    }
    return {
        **row,
        "kind": "access",
        "stream": "aaa",
        "app": "x",
        "nacc": number,
        **names,
        **values,
    }


def batch_of(rows: Sequence[dict[str, Any]], columns: Any = COLUMNS) -> pa.RecordBatch:
    return record_batch({name: [row.get(name) for row in rows] for name, _ in columns}, columns)


def in_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [
        column.dictionary_encode() if column.type == pa.string() else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def by_part(batch: pa.RecordBatch) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for packed in pack_batch(batch, NUMBERS):
        assert packed.schema.names == ["part", "packed"] and packed.schema.types == [
            pa.int32(),
            pa.binary(),
        ]
        for row in packed.to_pylist():
            yield row["part"], decode_rows(row["packed"]).to_pylist()


def keys(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEYS)


def test_the_rows_of_a_key_are_in_one_partition_whatever_else_a_batch_has() -> None:
    rows = [access(number) for number in range(200)]
    part_of_key: dict[tuple[Any, ...], set[int]] = {}
    for some in (rows, rows[::-1][:60], rows[17:20]):
        for batch in (batch_of(some), in_dictionaries(batch_of(some))):
            parts = list(by_part(batch))
            unpacked = [row for _, of_part in parts for row in of_part]
            assert sorted(unpacked, key=repr) == sorted(some, key=repr)
            for part, of_part in parts:
                for row in of_part:
                    part_of_key.setdefault(keys(row), set()).add(part)
    assert {len(parts) for parts in part_of_key.values()} == {1}
    assert set.union(*part_of_key.values()) == set(NUMBERS)


def test_a_value_has_only_the_texts_of_its_rows() -> None:
    batch = in_dictionaries(
        batch_of([access(number, user=f"user {number}" * 100) for number in range(90)])
    )
    for packed in pack_batch(batch, NUMBERS):
        for value in packed["packed"].to_pylist():
            rows = decode_rows(value)
            assert len(rows["user"].chunk(0).dictionary) == rows.num_rows < 90


def test_values_of_quarantined_records_and_jobs_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_task, "_PACKED_BYTES", 3_000)
    quarantined = [
        access(1, kind="quarantine", detail=f"{number:04}" * 250) for number in range(20)
    ]
    jobs = [
        {"kind": "job", "stream": "condor", "id_hash": number - 9, "record": bytes(1000)}
        for number in range(20)
    ]
    for rows, columns in ((quarantined, COLUMNS), (jobs, JOB_COLUMNS)):
        parts = list(by_part(batch_of(rows, columns)))
        assert {len(of_part) for _, of_part in parts} <= {1, 2}
        assert sum(len(of_part) for _, of_part in parts) == 20
    assert {part for part, _ in parts} == set(NUMBERS)
    assert all(
        (row["id_hash"] % 3, part) in enumerate(NUMBERS) for part, rows in parts for row in rows
    )


def test_batches_with_and_without_packed_rows_are_unpacked() -> None:
    rows = [access(number) for number in range(9)]
    plain = batch_of(rows)
    mixed = [
        plain,
        *pack_batch(in_dictionaries(plain), (0,)),
        *pack_batch(plain.slice(0, 0), NUMBERS),
    ]
    assert [batch.to_pylist() for batch in unpack_batches(mixed)] == [rows, rows]
    (decoded,) = decode_batches(mixed[1:])
    assert decoded.schema == plain.schema and decoded.to_pylist() == rows
