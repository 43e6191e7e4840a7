"""Tables made on Arrow are those that Spark makes of the same rows, cell by cell."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.errors import DataError
from cmsspark.schemas import stored_table
from cmsspark.transforms import aggregate, arrow
from cmsspark.transforms.fold import COLUMNS, record_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = date(2026, 1, 15)
NAMES = [name for name, _ in COLUMNS]
WORDS = {"string": "string", "long": "bigint"}
BIG = 2**62

Row = dict[str, Any]


def access(**more: Any) -> Row:
    row: Row = dict.fromkeys(NAMES)
    return {
        **row,
        **{"kind": "access", "stream": "aaa", "dataset_name": "/p/q/AOD", "site_name": "T2_X_Y", "app": "crab"},
        **{"user": "u1", "nacc": 1, "remote_nacc": 1, "read_bytes": 5, **more},
    }


def other(kind: str, stream: str, app: str, nacc: int, detail: str | None = None) -> Row:
    return {**dict.fromkeys(NAMES), "kind": kind, "stream": stream, "app": app, "nacc": nacc, "detail": detail}


ROWS: list[Row] = [
    access(),
    access(),
    access(user=None, remote_nacc=None),
    access(user=None, remote_nacc=None),
    access(user="u2", remote_nacc=None, read_bytes=BIG),
    access(stream="crab", read_bytes=None, cpu_ms=1500, wall_ms=None, remote_nacc=0),
    access(stream="crab", read_bytes=None, cpu_ms=None, wall_ms=None, remote_nacc=0),
    access(stream="crab", user="u3", read_bytes=None, cpu_ms=None, wall_ms=1, remote_nacc=None),
    access(site_name="unknown", app="unknown", read_bytes=0),
    access(site_name="T1_US_FNAL_Disk", dataset_name="no slashes"),
    access(site_name="", dataset_name="/one"),
    access(dataset_name="/ä/é/日本"),
    other("bin", "aaa", "read", 7),
    other("bin", "aaa", "read", 3),
    other("bin", "eos", "out_of_day", 2, "2026-01-14"),
    other("quarantine", "eos", "malformed", 0, '{"file": "x"}'),
]


def batches(rows: list[Row], size: int) -> list[pa.RecordBatch]:
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [record_batch({name: [row[name] for row in part] for name in NAMES}, COLUMNS) for part in parts]


def cells(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_both_tables_are_those_that_spark_makes(spark: SparkSession, size: int) -> None:
    folded = arrow.fold_batches(batches(ROWS, size))
    schema = ", ".join(f"`{name}` {WORDS[kind]}" for name, kind in COLUMNS)
    of_spark = aggregate.fold_tasks(spark.createDataFrame([tuple(row.values()) for row in ROWS], schema), 2)
    for name, on_arrow, by_spark in (
        ("partials", arrow.partials, aggregate.partials),
        ("data_aggregation", arrow.report, aggregate.report),
    ):
        wanted = [row.asDict() for row in by_spark(of_spark, DAY).collect()]
        assert cells(on_arrow(folded, DAY, stored_table(name)).to_pylist()) == cells(wanted)


def test_what_is_no_access_is_told_as_it_came_and_accesses_as_matched() -> None:
    folded = arrow.fold_batches(batches(ROWS, 4))
    told = list(folded.told())
    assert ("bin", "aaa", "read", 7, None) in told and ("bin", "aaa", "read", 3, None) in told
    assert ("bin", "eos", "out_of_day", 2, "2026-01-14") in told
    assert {(stream, count) for kind, stream, name, count, _ in told if name == "matched"} == {("aaa", 9), ("crab", 3)}
    assert not [row for row in told if row[0] == "quarantine"]
    assert list(folded.quarantined()) == [("eos", '{"file": "x"}')]


def test_what_any_access_of_a_stream_has_is_known() -> None:
    folded = arrow.fold_batches(batches(ROWS, 4))
    assert folded.known() == {"aaa": {"bytes", "site", "user", "app"}, "crab": {"site", "user", "app"}}
    bare = access(user=None, site_name="unknown", app="unknown", read_bytes=0)
    assert arrow.fold_batches(batches([bare], 1)).known() == {"aaa": set()}


def test_a_day_without_accesses_has_empty_tables_of_the_same_columns() -> None:
    folded = arrow.fold_batches(batches(ROWS[-4:], 2))
    for name, make in (("partials", arrow.partials), ("data_aggregation", arrow.report)):
        made = make(folded, DAY, stored_table(name))
        assert made.num_rows == 0
        assert made.schema.equals(stored_table(name).arrow())
    assert arrow.fold_batches([]).people.values["nacc"].tolist() == []


def test_a_sum_beyond_64_bits_is_refused() -> None:
    with pytest.raises(DataError, match="beyond 2\\^63-1"):
        arrow.fold_batches(batches([access(read_bytes=BIG), access(read_bytes=BIG)], 1))
    folded = arrow.fold_batches(batches([access(read_bytes=BIG), access(user="u2", read_bytes=BIG)], 1))
    with pytest.raises(DataError, match="beyond 2\\^63-1"):
        arrow.report(folded, DAY, stored_table("data_aggregation"))


def test_more_combinations_of_keys_than_64_bits_hold_still_fold_right() -> None:
    # 2,000 texts in each of six keys are 2^66 combinations.
    wide = [
        access(**{name: f"{name}{number}" for name in ("stream", "dataset_name", "site_name", "app", "user")})
        for number in range(9_000)
    ]
    made = arrow.partials(arrow.fold_batches(batches([*wide, *wide], 5_000)), DAY, stored_table("partials"))
    assert made.num_rows == 9_000
    assert set(made["nacc"].to_pylist()) == {2}


few = st.sampled_from(["a", "b", "T1_c"])


@given(
    st.lists(
        st.builds(
            access,
            stream=few,
            dataset_name=few,
            site_name=few,
            app=few,
            user=st.none() | few,
            nacc=st.integers(1, 9),
            remote_nacc=st.none() | st.integers(0, 9),
            cpu_ms=st.none() | st.integers(0, 10_000),
        ),
        max_size=30,
    ),
    st.integers(1, 10),
)
def test_any_rows_fold_as_a_plain_count_says(rows: list[Row], size: int) -> None:
    wanted: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("stream", "dataset_name", "site_name", "app"))
        found = wanted.setdefault(key, [0, None, None, set()])
        found[0] += row["nacc"]
        for place, name in ((1, "remote_nacc"), (2, "cpu_ms")):
            if row[name] is not None:
                found[place] = (found[place] or 0) + row[name]
        found[3] |= {row["user"]} - {None}
    made = arrow.report(arrow.fold_batches(batches(rows, size)), DAY, stored_table("data_aggregation")).to_pylist()
    assert {
        (row["stream"], row["dataset_name"], row["site_name"], row["app"]): (
            row["nacc"],
            row["remote_nacc"],
            row["cpu_time"],
            row["distinct_users"],
        )
        for row in made
    } == {
        key: (nacc, remote, None if cpu is None else cpu / 1000, len(users))
        for key, (nacc, remote, cpu, users) in wanted.items()
    }
