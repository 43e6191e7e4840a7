"""Sums of table rows by key equal those of ``Table.group_by``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.pages.pictures import sum_rows

KEYS = st.none() | st.sampled_from(["", "aaa", "eos", "ü"])
ROWS = st.lists(
    st.tuples(KEYS, KEYS, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    max_size=30,
)
KIND = pa.dictionary(pa.int32(), pa.string())


@settings(deadline=None)  # the first import of pandas by pyarrow takes its time
@given(ROWS, st.integers(0, 30))
def test_sums_are_those_of_group_by_in_any_chunks(rows: list[tuple[Any, ...]], cut: int) -> None:
    first, second, count, seconds = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    )
    table = pa.table(
        {
            "first": pa.chunked_array([pa.array(first[:cut], KIND), pa.array(first[cut:], KIND)]),
            "second": pa.array(second, pa.string()),
            "nacc": pa.array(count, pa.int64()),
            "cpu_time": pa.array([value and value / 2 for value in seconds], pa.float64()),
        }
    )
    keys, measures = ["first", "second"], ["nacc", "cpu_time"]
    plain = table.set_column(0, "first", table["first"].cast("string"))
    expected = plain.group_by(keys).aggregate([(name, "sum") for name in measures]).to_pylist()
    sums = {
        (row["first"], row["second"]): (row["nacc"], row["cpu_time"])
        for row in sum_rows(table, keys, measures)
    }
    assert sums == {
        (row["first"], row["second"]): (row["nacc_sum"], row["cpu_time_sum"]) for row in expected
    }
    assert len(expected) == len(sum_rows(table, keys, measures))
