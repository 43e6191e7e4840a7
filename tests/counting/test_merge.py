"""The merge: pre-aggregated rows become both tables and the side rows, here and in
Spark's tasks alike.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import stored_table
from cmsspark.counting.merge import Merge, SideRow, merge
from cmsspark.counting.pre_aggregate import COLUMNS, record_batch
from cmsspark.counting.reconciliation import KEPT, OTHER
from cmsspark.counting.sums import in_seconds
from cmsspark.engines.merge_task import MERGED_COLUMNS, decode_rows, merge_accesses

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
        **{
            "kind": "access",
            "stream": "aaa",
            "dataset_name": "/p/q/AOD",
            "site_name": "T2_X_Y",
            "app": "crab",
        },
        **{"user": "u1", "nacc": 1, "remote_nacc": 1, "read_bytes": 5, **more},
    }


def other(kind: str, stream: str, app: str, nacc: int, detail: str | None = None) -> Row:
    return {
        **dict.fromkeys(NAMES),
        "kind": kind,
        "stream": stream,
        "app": app,
        "nacc": nacc,
        "detail": detail,
    }


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
    return [
        record_batch({name: [row[name] for row in part] for name in NAMES}, COLUMNS)
        for part in parts
    ]


def cells(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


#: What ``ROWS`` come to, by hand: of each report row (stream, dataset, site, app) the
#: accesses, people, remote accesses, bytes, seconds of CPU and of wall clock.
REPORT = [
    ("aaa", "/one", "", "crab", 1, 1, 1, 5, None, None),
    ("aaa", "/p/q/AOD", "T2_X_Y", "crab", 5, 2, 2, BIG + 20, None, None),
    ("aaa", "/p/q/AOD", "unknown", "unknown", 1, 1, 1, 0, None, None),
    ("aaa", "/ä/é/日本", "T2_X_Y", "crab", 1, 1, 1, 5, None, None),
    ("aaa", "no slashes", "T1_US_FNAL_Disk", "crab", 1, 1, 1, 5, None, None),
    ("crab", "/p/q/AOD", "T2_X_Y", "crab", 3, 2, 0, None, 1.5, 0.001),
]


def tables(rows: list[Row], size: int) -> tuple[list[Row], list[Row]]:
    """The partials and the report of rows that come in batches of ``size``."""
    found = merge(batches(rows, size))
    report = found.report(DAY, stored_table("data_aggregation"))
    return found.partials(DAY, stored_table("partials")).to_pylist(), report.to_pylist()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_report_has_the_sums_of_each_key_in_order_and_null_where_nothing_is_known(
    size: int,
) -> None:
    partials, report = tables(ROWS, size)
    names = (
        "stream",
        "dataset_name",
        "site_name",
        "app",
        "nacc",
        "distinct_users",
        "remote_nacc",
        "read_bytes",
    )
    assert [
        tuple(row[name] for name in (*names, "cpu_time", "wc_time")) for row in report
    ] == REPORT
    assert {(row["day"], row["timestamp"]) for row in report} == {(DAY, 1_768_435_200_000)}
    assert [
        tuple(row[name] for name in ("user", "nacc", "remote_nacc", "read_bytes"))
        for row in partials[1:4]
    ] == [(None, 2, None, 10), ("u1", 2, 2, 10), ("u2", 1, None, BIG)]


def test_derived_columns_follow_from_their_sources() -> None:
    _, report = tables(ROWS, 4)
    derived = (
        "site_name",
        "site_tier",
        "dataset_name",
        "primary_name",
        "processing_name",
        "data_tier",
    )
    assert {tuple(row[name] for name in derived) for row in report} == {
        ("", "", "/one", "one", None, None),
        ("T2_X_Y", "T2", "/p/q/AOD", "p", "q", "AOD"),
        ("unknown", "unknown", "/p/q/AOD", "p", "q", "AOD"),
        ("T2_X_Y", "T2", "/ä/é/日本", "ä", "é", "日本"),
        ("T1_US_FNAL_Disk", "T1", "no slashes", None, None, None),
    }


def test_merged_in_steps_or_at_once_the_rows_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tables(ROWS, 100)
    monkeypatch.setattr("cmsspark.counting.merge.MERGE_AT", 2)
    assert tables(ROWS, 1) == wanted


def test_spark_makes_the_same_tables_and_side_rows_whatever_partition_a_key_is_in(
    spark: SparkSession,
) -> None:
    from cmsspark.run.spark import merged

    schema = ", ".join(f"`{name}` {WORDS[kind]}" for name, kind in COLUMNS)
    rows = merged(
        spark.createDataFrame([tuple(row.values()) for row in ROWS], schema), 3, DAY
    ).collect()
    partials, report = tables(ROWS, 100)
    for kind, table in (("partials", partials), ("report", report)):
        packed = [row for row in rows if row["kind"] == kind]
        found = [one for row in packed for one in decode_rows(row["packed"]).to_pylist()]
        assert cells(found) == cells(table)
        assert sum(row["nacc"] for row in packed) == len(table)
    side = [
        tuple(row[name] for name in ("kind", "stream", "app", "nacc", "detail")) for row in rows
    ]
    bins = [row for row in side if row[0] == "bin"]
    assert sorted(bins, key=repr) == sorted(
        (row for row in merge(batches(ROWS, 3)).side_rows() if row[0] == "bin"), key=repr
    )
    assert ("quarantine", "eos", "malformed", 0, '{"file": "x"}') in side


def side_rows(rows: list[Row]) -> list[SideRow]:
    return list(merge(batches(rows, 4)).side_rows())


def test_side_rows_are_summed_and_accesses_are_matched() -> None:
    told = side_rows(ROWS)
    assert ("bin", "aaa", "read", 10, None) in told
    assert ("bin", "eos", "out_of_day", 2, "2026-01-14") in told
    assert {(stream, count) for _, stream, name, count, _ in told if name == "matched"} == {
        ("aaa", 9),
        ("crab", 3),
    }
    assert not [row for row in told if row[0] == "quarantine"]
    assert merge(batches(ROWS, 4)).quarantined == [("eos", '{"file": "x"}')]


def test_files_that_the_shuffle_join_has_not_found_are_in_their_bin_prefix_and_site() -> None:
    lost = [
        other("unmatched", "aaa", f"/store/mc/Run{number}/*", 2) | {"site_name": "T2_A"}
        for number in range(KEPT + 3)
    ]
    of_eos = other("unmatched", "eos", "/store/user/*", 5) | {"site_name": "T2_CH_CERN"}
    told = side_rows([*lost, of_eos, *lost])
    assert ("unmatched_site", "aaa", "T2_A", 4 * (KEPT + 3), None) in told
    assert {row for row in told if row[0] == "bin" or row[1] == "eos"} == {
        ("bin", "aaa", "not_in_dbs", 4 * (KEPT + 3), None),
        ("bin", "eos", "user_file", 5, None),
        ("prefix", "eos", "/store/user/*", 5, ""),
        ("unmatched_site", "eos", "T2_CH_CERN", 5, None),
    }
    by_prefix = {
        name: count for kind, stream, name, count, _ in told if (kind, stream) == ("prefix", "aaa")
    }
    assert (
        len(by_prefix) == KEPT + 1
        and set(by_prefix.values()) == {4, 12}
        and by_prefix[OTHER] == 12
    )


def test_what_any_access_of_a_stream_has_is_a_side_row() -> None:
    def has(rows: list[Row]) -> set[tuple[str, str]]:
        return {(stream, what) for kind, stream, what, _, _ in side_rows(rows) if kind == "has"}

    of_aaa = {("aaa", what) for what in ("bytes", "site", "user", "app")}
    assert has(ROWS) == of_aaa | {("crab", what) for what in ("site", "user", "app")}
    assert has([access(user=None, site_name="unknown", app="unknown", read_bytes=0)]) == set()


def test_quarantined_records_beyond_what_is_kept_of_a_stream_are_counted() -> None:
    records = [
        other("quarantine", stream, "malformed", 0, "x" * 10)
        for stream in ("eos", "eos", "eos", "aaa")
    ]
    merging = Merge(kept_bytes=15)
    for batch in batches(records, 1):
        merging.add(batch)
    found = merging.result()
    assert [stream for stream, _ in found.quarantined] == ["eos", "eos", "aaa"]
    assert list(found.side_rows()) == [("quarantine_cut", "eos", "malformed", 1, None)]


def test_a_day_without_accesses_has_empty_tables_of_the_same_columns() -> None:
    for rows in (ROWS[-4:], []):
        found = merge(batches(rows, 2))
        for name, make in (("partials", found.partials), ("data_aggregation", found.report)):
            made = make(DAY, stored_table(name))
            assert made.num_rows == 0
            assert made.schema.equals(stored_table(name).arrow())
    assert list(merge_accesses(DAY, [])) == []
    (told,) = merge_accesses(DAY, batches(ROWS[-4:], 2))
    assert told.schema.names == [name for name, _ in MERGED_COLUMNS]


def test_a_sum_beyond_64_bits_is_refused_and_one_up_to_it_is_exact() -> None:
    def report(*sizes: int) -> int:
        rows = [access(user=str(number), read_bytes=size) for number, size in enumerate(sizes)]
        (row,) = tables(rows, 1)[1]
        return int(row["read_bytes"])

    with pytest.raises(DataError, match="beyond 2\\^63-1"):
        merge(batches([access(read_bytes=BIG), access(read_bytes=BIG)], 1))
    with pytest.raises(DataError, match="read_bytes is beyond 2\\^63-1"):
        report(BIG, BIG)
    assert report(BIG, BIG - 1) == 2**63 - 1
    assert report(2**52 + 1, BIG) == BIG + 2**52 + 1


def test_more_combinations_of_keys_than_64_bits_hold_still_merge_right() -> None:
    # 9,000 texts in each of five keys are 2^65 combinations.
    wide = [
        access(
            **{
                name: f"{name}{number}"
                for name in ("stream", "dataset_name", "site_name", "app", "user")
            }
        )
        for number in range(9_000)
    ]
    made = merge(batches([*wide, *wide], 5_000)).partials(DAY, stored_table("partials"))
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
def test_any_rows_merge_as_a_plain_count_says(rows: list[Row], size: int) -> None:
    wanted: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("stream", "dataset_name", "site_name", "app"))
        found = wanted.setdefault(key, [0, None, None, set()])
        found[0] += row["nacc"]
        for place, name in ((1, "remote_nacc"), (2, "cpu_ms")):
            if row[name] is not None:
                found[place] = (found[place] or 0) + row[name]
        found[3] |= {row["user"]} - {None}
    _, made = tables(rows, size)
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


def test_seconds_are_rounded_once_however_many_milliseconds_there_are() -> None:
    """A sum beyond 2^53 has no double of its own: rounding it before the division would
    change the last digit.
    """
    sums = [0, 1, 1500, 2**53, 2**53 + 1, 999_999_999_999_998_976 + 8_159_505, 2**63 - 1]
    assert in_seconds(np.array(sums, np.int64)).tolist() == [value / 1000 for value in sums]
    assert any(value / 1000 != float(value) / 1000 for value in range(2**53 + 1, 2**53 + 4001, 2))
