"""A day as timestamps name it: in seconds, milliseconds or microseconds, told apart by their size."""

from __future__ import annotations

from datetime import UTC, date, datetime


def bounds(day: date) -> list[tuple[int, int]]:
    """First and last timestamp of the day in each unit; no timestamp lies in two of them."""
    first = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    return [(first * unit, (first + 86_400) * unit - 1) for unit in (1, 1_000, 1_000_000)]
