"""Keyed rows in Spark: keys are spread evenly, rows survive packing, and a table without rows has its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cmsspark.base.schemas import stored_table
from cmsspark.dumps import dump_scan, keyed_batches
from cmsspark.dumps.dump_tables import TableSource
from cmsspark.dumps.keyed_rows import KeyedRows, unpacked


@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_each_key_has_a_partition_of_its_own(spark: Any, count: int) -> None:
    numbers = keyed_batches.partition_numbers(count)
    rows = spark.createDataFrame([(number,) for number in numbers], "part int").repartition(count, "part")
    assert [len(one) for one in rows.rdd.glom().collect()] == [1] * count


def test_the_keys_follow_the_bytes_of_the_dumps() -> None:
    size = dump_scan.KEY_BYTES
    found = [dump_scan.key_count(weight) for weight in (0, 1, size, size + 1, 3 * size, 10**15)]
    assert found == [1, 1, 1, 2, 4, 4096]


def test_packed_rows_are_the_rows() -> None:
    columns = {
        "hash": np.array([2**64 - 1, 0], np.uint64),
        "there": np.array([255, 1], np.uint8),
        "none": np.zeros(0, np.int64),
        "flag": np.array([True, False]),
    }
    rows = KeyedRows(7, "files", columns, {"nodes": ["ü", None, ""], "datasets": [[2**64 - 1, 3]]})
    found = unpacked(7, "files", rows.packed())
    assert found.names == rows.names
    assert {name: (one.dtype, one.tolist()) for name, one in found.columns.items()} == {
        name: (one.dtype, one.tolist()) for name, one in columns.items()
    }


def test_tables_without_rows_have_their_columns(spark: Any) -> None:
    kinds = {"DATASETS": "dataset_id bigint, dataset string", "BLOCKS": "block_name string, dataset_id bigint"}
    kinds["FILES"] = (
        "logical_file_name string, file_id bigint, dataset_id bigint, is_file_valid bigint, event_count bigint,"
        " file_size bigint"
    )
    kinds["block_replicas"] = (
        "dataset_name string, block_name string, node_name string, block_files bigint, block_bytes bigint,"
        " br_node_files bigint, br_node_bytes bigint, replica_time_create double"
    )
    types = {"bigint": pa.int64(), "string": pa.string(), "double": pa.float64()}
    sources = {}
    for name, columns in kinds.items():
        pairs = [column.split() for column in columns.split(",")]
        schema = pa.schema([(column, types[kind]) for column, kind in pairs])
        sources[name] = TableSource(spark.createDataFrame([], columns), iter, schema, 0)
    frames = dump_scan.read_frames(spark, sources)
    assert {name: frame.height for name, frame in frames.items()} == {"DATASETS": 0, "contents": 0, "presence": 0}
    assert frames["DATASETS"].columns == ["dataset_id", "dataset"]
    assert {"is_complete", "block_count", "kind"} <= set(frames["presence"].columns)


@pytest.mark.parametrize("rows", [0, 5])
def test_rows_of_the_driver_become_a_dataframe(spark: Any, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(dump_scan, "_SENT_ROWS", 2)
    schema = stored_table("phedex")
    table = pa.Table.from_pylist([{"site_name": f"T2_{number}"} for number in range(rows)], schema.arrow())
    found = dump_scan.as_dataframe(spark, table, schema)
    assert found.schema.names == schema.names
    assert [row["site_name"] for row in found.collect()] == table["site_name"].to_pylist()
