"""The days of ``cmsspark daily --date``, and what a job says of more than one day."""

from __future__ import annotations

from datetime import date, timedelta

import click
import pytest

from cmsspark.base import dates
from cmsspark.cli.options import DaysType, DayType

FIRST = date(2026, 1, 1)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("20260101", [0]),
        ("2026/01/01", [0]),
        ("20260101..20260103", [0, 1, 2]),
        ("20260101:2026-01-02", [0, 1]),
        ("20260101-20260102", [0, 1]),
        ("20260101, 20260105..20260106", [0, 4, 5]),
        ("20260102,20260102", [1]),
    ],
)
def test_a_day_a_range_or_a_list_are_days(text: str, numbers: list[int]) -> None:
    assert DaysType().convert(text, None, None) == {
        FIRST + timedelta(days=number) for number in numbers
    }


@pytest.mark.parametrize(
    "text", ["", "20260102..20260101", "20260101..", "20260101,,20260102", "20260230", "99991231"]
)
def test_other_texts_are_no_days(text: str) -> None:
    with pytest.raises(click.UsageError):
        DaysType().convert(text, None, None)


def test_days_have_names() -> None:
    before = dates.today()
    found = {DayType().convert("today", None, None), DayType().convert("yesterday", None, None)}
    assert found in ({day, day - timedelta(days=1)} for day in (before, dates.today()))
    assert DaysType().convert("yesterday..today", None, None) >= {before}


@pytest.mark.parametrize(
    "text", ["20260101..20260131", "20260101,20260102", "20260101-20260131", "20260101:20260131"]
)
def test_a_job_takes_one_day_and_names_the_command_that_takes_several(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"cmsspark daily --date 20260101\.\.20260131"):
        DayType().convert(text, None, None)
