"""Rollups of partials: each cell as a count in plain Python has it, whatever the days,
nulls, batches and filters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import stored_table
from cmsspark.counting import rollup
from cmsspark.counting.packing import pack
from cmsspark.counting.rollup import KEYS, MEASURES, Rollup, RollupState, matches, roll_up
from tests.run.partial_days import KINDS, Row, counted, partial, user

FIRST = date(2026, 12, 28)
DAYS = [FIRST + timedelta(days=number) for number in range(7)]
SCHEMA = pa.schema(
    [(column.name, KINDS[column.type]) for column in stored_table("partials").columns]
)
COUNTS = st.none() | st.integers(0, 2**40)
SECONDS = st.none() | st.integers(0, 10**12).map(lambda ms: ms / 1000)
ROWS = st.builds(
    partial,
    st.sampled_from(DAYS),
    stream=st.sampled_from(["aaa", "eos", "cmssw", "crab"]),
    dataset_name=st.sampled_from(
        ["/ZMM/Run2026A-v1/AOD", "/ZMM/Run2026A-v1/MINIAOD", "/Ä/b", "/ttH/*/AOD", "odd"]
    ),
    site_name=st.sampled_from(["T2_CH_CERN", "T2_US_X", "T1_DE_KIT", "unknown", ""]),
    app=st.sampled_from(["crab", "other"]),
    user=st.none() | st.integers(0, 4).map(user),
    nacc=st.integers(1, 2**40),
    remote_nacc=COUNTS,
    read_bytes=COUNTS,
    cpu_time=SECONDS,
    wc_time=SECONDS,
)
PATTERNS = st.lists(
    st.sampled_from(["*", "aaa", "T2_*", "T?_*", "/ZMM*/AOD", "AOD", "crab", "", "/ttH/*/AOD"]),
    min_size=1,
)


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def by_day(rows: Sequence[Row]) -> list[tuple[date, pa.Table]]:
    days = sorted({row["day"] for row in rows})
    return [(day, table([row for row in rows if row["day"] == day])) for day in days]


def found(query: Rollup, rows: Sequence[Row], size: int = 99) -> dict[tuple[Any, ...], Row]:
    """What the rollup says, its days taken in ``size`` at a time: group → measures."""
    days = by_day(rows)
    frame, _ = roll_up(query, [days[start : start + size] for start in range(0, len(days), size)])
    assert frame.columns == [*query.keys, *query.measures]
    groups = {tuple(row[key] for key in query.keys): row for row in frame.to_dicts()}
    assert len(groups) == frame.height
    return {group: {name: row[name] for name in query.measures} for group, row in groups.items()}


def fit(value: Any, patterns: Sequence[str]) -> bool:
    forms = [re.escape(one).replace(r"\*", ".*").replace(r"\?", ".") for one in patterns]
    return value is not None and any(re.fullmatch(form, value, re.DOTALL) for form in forms)


@settings(deadline=None, max_examples=120)
@given(
    st.lists(ROWS, max_size=25),
    st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=5),
    st.lists(st.sampled_from(MEASURES), unique=True, min_size=1),
    st.dictionaries(st.sampled_from(KEYS[1:]), PATTERNS.map(tuple), max_size=2),
    st.integers(1, 7),
)
def test_every_cell_is_that_of_a_plain_count(
    rows: list[Row],
    keys: list[str],
    measures: list[str],
    filters: dict[str, tuple[str, ...]],
    size: int,
) -> None:
    query = Rollup(tuple(keys), tuple(measures), filters)
    wanted = counted(
        rows,
        keys,
        measures,
        lambda row: all(fit(row[name], patterns) for name, patterns in filters.items()),
    )
    assert found(query, rows, size) == wanted


@settings(deadline=None, max_examples=25)
@given(st.lists(ROWS, max_size=20), st.integers(1, 7))
def test_without_keys_all_is_one_row_also_over_nothing(rows: list[Row], size: int) -> None:
    nothing = {(): {name: None if name in rollup.SUMS else 0 for name in MEASURES}}
    assert found(Rollup(()), rows, size) == (counted(rows, (), MEASURES) or nothing)


def test_one_person_on_many_days_sites_and_streams_is_one() -> None:
    rows = [
        partial(day, site_name=site, stream=stream)
        for day in DAYS
        for site in "AB"
        for stream in ("aaa", "eos")
    ]
    rows += rows[:3]
    assert found(Rollup(("dataset_name",), ("distinct_users", "day_count")), rows) == {
        ("/ZMM/Run2026A-v1/AOD",): {"distinct_users": 1, "day_count": 7}
    }


def test_nobody_counts_as_an_access_and_not_as_a_user() -> None:
    rows = [partial(FIRST, user=None, nacc=3), partial(DAYS[1], user=None, nacc=4)]
    assert found(Rollup(("stream",), ("nacc", "distinct_users")), rows) == {
        ("aaa",): {"nacc": 7, "distinct_users": 0}
    }


def test_rows_come_in_the_order_of_their_keys_whatever_the_order_of_days() -> None:
    rows = [
        partial(day, site_name=site, cpu_time=0.1)
        for day in DAYS
        for site in ("T2_B", "T2_A", "T1_C")
    ]
    query = Rollup(("site_name", "day"), ("cpu_time",))
    frames = [
        roll_up(query, [[day] for day in days])[0] for days in (by_day(rows), by_day(rows)[::-1])
    ]
    assert frames[0].equals(frames[1])
    assert frames[0]["site_name"].to_list() == sorted(frames[0]["site_name"])


def test_dictionaries_of_another_order_in_each_part_are_the_same_texts() -> None:
    first = table([partial(FIRST, site_name=site) for site in ("A", "B")])
    second = table([partial(FIRST, site_name=site) for site in ("B", "C", "A")])
    batch = [(FIRST, _encoded(first)), (FIRST, _encoded(second)), (FIRST, first)]
    frame, _ = roll_up(Rollup(("site_name",), ("nacc",)), [batch])
    assert dict(frame.iter_rows()) == {"A": 3, "B": 3, "C": 1}


def _encoded(rows: pa.Table) -> pa.Table:
    for name in ("stream", "dataset_name", "site_name", "app", "user"):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, rows.column(name).dictionary_encode())
    return rows


def test_a_sum_beyond_64_bits_is_reported_and_never_wraps_around() -> None:
    rows = [partial(day, read_bytes=2**62) for day in DAYS[:2]]
    for size in (1, 2):
        with pytest.raises(DataError, match="read_bytes is beyond"):
            found(Rollup(("stream",), ("read_bytes",)), rows, size)
    most = [
        partial(FIRST, read_bytes=2**62, site_name="A"),
        partial(FIRST, read_bytes=2**62, site_name="B"),
    ]
    assert found(Rollup(("site_name",), ("read_bytes",)), most)["A",] == {"read_bytes": 2**62}


def test_more_combinations_than_64_bits_hold_are_still_reported_apart() -> None:
    codes = [pl.Series([0, 2**40, 2**40, 1]).to_numpy(), pl.Series([2**30, 5, 5, 0]).to_numpy()]
    packed, unpack = pack(codes, 4)
    assert len(set(packed.tolist())) == 3
    assert [column.tolist() for column in unpack(packed)] == [column.tolist() for column in codes]


def test_patterns_are_stars_and_question_marks_alone() -> None:
    assert matches("/ZMM_a/b/AOD", ["/ZMM*/*/AOD"])
    assert not matches("/ZMM/b/AODSIM", ["/ZMM*/*/AOD"])
    assert matches("a[b].c\n", ["a[b].?\n", "x"])
    assert not matches("abc", ["a.c"])
    assert matches("fuse", ["!storage"]) and not matches("storage", ["!storage"])
    assert not matches(None, ["*"])


def test_only_what_is_asked_for_is_read() -> None:
    assert Rollup(("data_tier",), ("nacc",)).columns == ["dataset_name", "nacc"]
    assert Rollup(("site_name",), ("distinct_users",), {"app": ("crab",)}).columns == [
        "site_name",
        "app",
        "user",
        "nacc",
    ]
    RollupState(Rollup(("day",), ("day_count",))).add(
        [(FIRST, table([partial(FIRST)]).select(["nacc"]))]
    )
