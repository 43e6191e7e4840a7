"""Periods: ISO weeks, months and ranges in UTC, each with one name, half-open."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base import dates, periods
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Period, between, month, named, spans, week

TODAY = date(2026, 11, 21)
DAYS = st.dates(date(1970, 1, 1), date(2100, 1, 1))


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("2026-W46", date(2026, 11, 9), date(2026, 11, 16)),
        ("2026W46", date(2026, 11, 9), date(2026, 11, 16)),
        ("2020-W53", date(2020, 12, 28), date(2021, 1, 4)),
        ("2021-W01", date(2021, 1, 4), date(2021, 1, 11)),
        ("2025-W01", date(2024, 12, 30), date(2025, 1, 6)),
        ("last", date(2026, 11, 9), date(2026, 11, 16)),
    ],
)
def test_a_week_is_that_of_iso_8601_also_at_the_year_s_end(
    text: str, first: date, end: date
) -> None:
    found = week(text, TODAY)
    assert (found.first, found.end) == (first, end)
    assert len(found.days) == 7 and found.days[-1] == found.last


@pytest.mark.parametrize(
    ("today", "first"),
    [(date(2026, 11, 15), date(2026, 11, 2)), (date(2026, 11, 16), date(2026, 11, 9))],
)
def test_the_last_week_is_the_last_that_is_over(today: date, first: date) -> None:
    assert week("last", today).first == first


def test_a_month_has_its_own_length() -> None:
    assert len(month("2024-02", TODAY).days) == 29
    assert month("202412", TODAY).end == date(2025, 1, 1)
    assert month("last", TODAY) == Period(date(2026, 10, 1), date(2026, 11, 1))
    assert month("last", date(2026, 1, 31)) == Period(date(2025, 12, 1), date(2026, 1, 1))


@pytest.mark.parametrize(
    "text", ["2026-W54", "2021-W53", "2026-W00", "W46", "2026-46", "2027-W01", "٢٠٢٦-W46", ""]
)
def test_a_week_that_is_none_or_lies_ahead_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        week(text, TODAY)


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-00", "2026", "2026-1", "2026-12", "0000-01", ""]
)
def test_a_month_that_is_none_or_lies_ahead_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        month(text, TODAY)


def test_a_range_is_a_few_thousand_days_in_order() -> None:
    assert between(TODAY, TODAY).days == [TODAY]
    for first, last in (
        (TODAY, TODAY - timedelta(1)),
        (date(1, 1, 1), TODAY),
        (date(9999, 12, 1), date.max),
    ):
        with pytest.raises(UsageError):
            between(first, last)


@given(DAYS, st.integers(0, 800))
def test_each_period_has_one_name_that_leads_back_to_it(first: date, more: int) -> None:
    period = between(first, first + timedelta(days=more))
    assert named(period.isoformat()) == period
    assert named(first.isoformat()) == first
    assert periods.start_ms(period) == dates.start_ms(first)


def test_a_range_that_is_a_week_or_a_month_is_called_so() -> None:
    assert str(between(date(2026, 11, 9), date(2026, 11, 15))) == "2026-W46"
    assert str(between(date(2026, 11, 1), date(2026, 11, 30))) == "2026-11"
    assert str(between(date(2026, 11, 1), date(2026, 11, 10))) == "2026-11-01--2026-11-10"
    assert [
        one.options
        for one in (between(TODAY, TODAY), week("2026-W46", TODAY), month("2026-11", TODAY))
    ] == ["--from 2026-11-21 --to 2026-11-21", "--week 2026-W46", "--month 2026-11"]
    assert periods.options(TODAY) == "--date 2026-11-21"


@pytest.mark.parametrize(
    "name",
    [
        "2026W46",
        "202611",
        "2026-11-01--2026-11-30",
        "20261101",
        "2026-11-31",
        "last",
        "x",
        "2026-11-01--",
        "--",
    ],
)
def test_other_spellings_name_nothing_in_the_store(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        named(name)


def test_days_are_reported_as_spans() -> None:
    assert spans([]) == ""
    chosen = [TODAY, date(2026, 11, 3), date(2026, 11, 20), date(2026, 11, 22)]
    assert spans(chosen) == "2026-11-03, 2026-11-20 to 2026-11-22"
    assert spans([TODAY + timedelta(days=2 * number) for number in range(12)]).endswith(
        " and 2 more"
    )
