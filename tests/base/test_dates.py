"""Days: parsed once, in UTC, half-open."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base import dates
from cmsspark.base.errors import UsageError


@given(st.dates())
def test_all_spellings_are_the_same_day(day: date) -> None:
    assert dates.parse_day(f"{day.year:04}{day.month:02}{day.day:02}") == day
    assert dates.parse_day(day.isoformat()) == day
    assert dates.parse_day(f"{day.year:04}/{day.month:02}/{day.day:02}") == day


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "2026-1-5",
        "202601-15",
        "2026-0115",
        "20260230",
        "2026-02-30",
        "2026-13-01",
        "00000101",
        "15.01.2026",
        " 20260115",
        "20260115\n",
        "2026-01-15T00",
        "2026/01-15",
        "2026/1/15",
        "٢٠٢٦٠١١٥",
        "-2026-01-15",
        "today",
    ],
)
def test_other_texts_are_no_day(text: str) -> None:
    with pytest.raises(UsageError) as error:
        dates.parse_day(text)
    assert error.value.exit_code == 2
    assert "20260115 or 2026-01-15" in str(error.value)


def test_a_day_after_the_latest_is_reported() -> None:
    latest = date(2026, 1, 15)
    assert dates.parse_day("20260115", latest=latest) == latest
    with pytest.raises(UsageError, match="future"):
        dates.parse_day("20260116", latest=latest)


def test_today_is_today_in_utc() -> None:
    before = datetime.now(UTC).date()
    assert before <= dates.today() <= before + timedelta(days=1)


@given(st.dates())
def test_a_day_is_its_first_instant_up_to_the_next_days(day: date) -> None:
    start, end = dates.timestamp_ms_bounds(day)
    assert start == dates.start_ms(day)
    assert start == int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
    assert end - start == dates.DAY_MS == 86_400_000


@given(st.dates(min_value=date(1970, 3, 3), max_value=date(5000, 1, 1)), st.integers(0, 86_399))
def test_a_timestamp_is_of_its_day_in_any_unit(day: date, second: int) -> None:
    at = dates.start_ms(day) // 1000 + second
    for unit, low, high in ((1, 0, 1e11), (1000, 1e11, 1e14), (1_000_000, 1e14, 1e20)):
        if low <= at * unit < high:
            assert dates.day_number(at * unit) == (day - date(1970, 1, 1)).days


@pytest.mark.parametrize(
    ("timestamp", "number"),
    [
        (0, 0),
        (86_399, 0),
        (86_400, 1),
        (99_999_999_999, 1_157_407),
        (100_000_000_000, 1_157),
        (99_999_999_999_999, 1_157_407),
        (100_000_000_000_000, 1_157),
        (2**63 - 1, 106_751_991),
    ],
)
def test_a_timestamps_unit_is_reported_by_its_size(timestamp: int, number: int) -> None:
    assert dates.day_number(timestamp) == number


def test_days_without_a_date_share_a_name() -> None:
    assert dates.day_name(0) == "1970-01-01"
    assert dates.day_name(2_932_896) == "9999-12-31"
    assert dates.day_name(2_932_897) == dates.day_name(10**15) == "beyond 9999-12-31"


def test_a_compact_day_sorts_and_parses() -> None:
    assert dates.compact(date(2026, 1, 5)) == "20260105"
    assert dates.parse_day(dates.compact(date(2026, 1, 5))) == date(2026, 1, 5)
