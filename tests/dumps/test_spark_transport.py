"""Keyed rows: Spark spreads keys evenly, rows survive packing, and a table without rows
has its columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cmsspark.base.schemas import stored_table
from cmsspark.dumps import dump_plan, spark_transport
from cmsspark.dumps.keyed_rows import KeyedRows, by_key, number_names, unpack
from cmsspark.dumps.spark_transport import SparkTransport, TableSource
from cmsspark.engines.merge_task import partition_numbers


@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_each_key_has_a_partition_of_its_own(spark: Any, count: int) -> None:
    numbers = partition_numbers(count)
    rows = spark.createDataFrame([(number,) for number in numbers], "part int").repartition(
        count, "part"
    )
    assert [len(one) for one in rows.rdd.glom().collect()] == [1] * count


def test_the_keys_follow_the_bytes_of_the_dumps() -> None:
    size = 1000
    found = [
        dump_plan.key_count(weight, size) for weight in (0, 1, size, size + 1, 3 * size, 10**15)
    ]
    assert found == [1, 1, 1, 2, 4, 4096]


def test_packed_rows_are_the_rows() -> None:
    columns = {
        "hash": np.array([2**64 - 1, 0], np.uint64),
        "there": np.array([255, 1], np.uint8),
        "none": np.zeros(0, np.int64),
        "flag": np.array([True, False]),
    }
    names = {"there": pa.array(["ü", None, ""]), "flag": pa.array(["x", "a", "b"]).slice(1)}
    names["none"] = pa.array([], "string")
    rows = KeyedRows(7, "files", columns, names)
    found = unpack(7, "files", b"".join(rows.buffers()))
    assert {name: texts.to_pylist() for name, texts in found.names.items()} == {
        "there": ["ü", None, ""],
        "flag": ["a", "b"],
        "none": [],
    }
    assert {name: (one.dtype, one.tolist()) for name, one in found.columns.items()} == {
        name: (one.dtype, one.tolist()) for name, one in columns.items()
    }


def test_rows_of_a_key_have_the_names_that_they_number_and_meet_in_one_numbering() -> None:
    names = {"name": pa.array(["a", "b", None, "c"])}
    columns = {"name": np.array([3, 0, 2, 0]), "value": np.arange(4)}
    rows = list(by_key("x", np.array([1, 0, 1, 0]), columns, names))
    assert [
        (one.key, one.names["name"].to_pylist(), one.columns["value"].tolist()) for one in rows
    ] == [(0, ["a"], [1, 3]), (1, [None, "c"], [0, 2])]
    numbers, texts = number_names([*rows, *rows], "name")
    assert [texts.to_pylist()[number] for number in numbers] == ["a", "a", "c", None] * 2
    assert len(texts) == 3


def test_tables_without_rows_have_their_columns(spark: Any) -> None:
    kinds = {
        "DATASETS": "dataset_id bigint, dataset string",
        "BLOCKS": "block_name string, dataset_id bigint",
    }
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
    frames = dump_plan.read_dumps(SparkTransport(spark), sources).frames
    heights = {name: frame.height for name, frame in frames.items()}
    assert heights == {"DATASETS": 0, "contents": 0, "dataset_replicas": 0}
    assert frames["DATASETS"].columns == ["dataset_id", "dataset"]
    assert {"is_complete", "block_count", "kind"} <= set(frames["dataset_replicas"].columns)


@pytest.mark.parametrize("rows", [0, 5])
def test_rows_of_the_driver_become_a_dataframe(
    spark: Any, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(spark_transport, "_SENT_ROWS", 2)
    schema = stored_table("phedex")
    table = pa.Table.from_pylist(
        [{"site_name": f"T2_{number}"} for number in range(rows)], schema.arrow()
    )
    found = spark_transport.send_table(spark, table, schema)
    assert found.schema.names == schema.names
    assert [row["site_name"] for row in found.collect()] == table["site_name"].to_pylist()
