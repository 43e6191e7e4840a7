"""Days: calendar dates in UTC, parsed once at the command line.

A day is a ``datetime.date``; as an interval it is half-open, ``[00:00, next 00:00)``
UTC. Timestamps are integers whose size determines their unit.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date, timedelta

from cmsspark.base import clock
from cmsspark.base.errors import UsageError

DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_DAY = re.compile(
    r"(\d{4})(\d{2})(\d{2})|(\d{4})-(\d{2})-(\d{2})|(\d{4})/(\d{2})/(\d{2})", re.ASCII
)


def today() -> date:
    """Return the current day in UTC."""
    return clock.utc(clock.now_ms()).date()


def parse_day(text: str, *, latest: date | None = None) -> date:
    """Parse a date written as ``20260115``, ``2026-01-15`` or ``2026/01/15``.

    Raises UsageError (2) for any other format, for a date that does not exist, and for
    one after ``latest``.

    Example:
        >>> parse_day("20260115")
        datetime.date(2026, 1, 15)
    """
    match = _DAY.fullmatch(text)
    hint = "write the day as 20260115 or 2026-01-15"
    if match is None:
        raise UsageError(f"not a day: {text!r}", next_step=hint)
    year, month, number = (int(part) for part in match.groups() if part is not None)
    try:
        day = date(year, month, number)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a calendar day ({error})", next_step=hint) from None
    if latest is not None and day > latest:
        raise UsageError(
            f"{day} is in the future (today is {latest} in UTC)",
            next_step="give a day that has logs",
        )
    return day


def start_ms(day: date) -> int:
    """Return the day's first instant as UTC milliseconds since 1970."""
    return (day - _EPOCH).days * DAY_MS


def timestamp_ms_bounds(day: date) -> tuple[int, int]:
    """Return the half-open interval ``[start, end)`` of the day in milliseconds.

    Example:
        >>> timestamp_ms_bounds(date(1970, 1, 2))
        (86400000, 172800000)
    """
    start = start_ms(day)
    return start, start + DAY_MS


def day_number(timestamp: int) -> int:
    """Return days since 1970 of a timestamp in seconds (below 1e11), milliseconds
    (below 1e14) or microseconds.

    Example:
        >>> day_number(1_768_435_200), day_number(1_768_435_200_000)
        (20468, 20468)
    """
    if timestamp < 100_000_000_000:
        return timestamp // 86_400
    if timestamp < 100_000_000_000_000:
        return timestamp // DAY_MS
    return timestamp // 86_400_000_000


def timestamp_ms(timestamp: int) -> int:
    """Return milliseconds since 1970 of a timestamp in seconds, milliseconds or
    microseconds, by its size.

    Example:
        >>> timestamp_ms(1_768_435_200)
        1768435200000
    """
    if timestamp < 100_000_000_000:
        return timestamp * 1000
    return timestamp if timestamp < 100_000_000_000_000 else timestamp // 1000


def day_name(number: int) -> str:
    """Return ``YYYY-MM-DD`` for a number of days since 1970; ``beyond 9999-12-31``
    after the last date.

    Example:
        >>> day_name(20468)
        '2026-01-15'
    """
    try:
        return (_EPOCH + timedelta(days=number)).isoformat()
    except OverflowError:
        return "beyond 9999-12-31"


def days_before(day: date, count: int) -> date:
    """Return the day so many days before; not before the year 1.

    Example:
        >>> days_before(date(2024, 3, 1), 1), days_before(date.min, 1)
        (datetime.date(2024, 2, 29), datetime.date(1, 1, 1))
    """
    return date.fromordinal(max(1, day.toordinal() - count))


def months_before(day: date, months: int) -> date:
    """Return the day so many months before, at most the last one of its month; not
    before the year 1.

    Example:
        >>> months_before(date(2024, 3, 31), 1)
        datetime.date(2024, 2, 29)
    """
    year, month = divmod(day.year * 12 + day.month - 1 - months, 12)
    if year < 1:
        return date.min
    last = monthrange(year, month + 1)[1]
    return date(year, month + 1, min(day.day, last))


def compact(day: date) -> str:
    """Return the day as ``20260115``."""
    return f"{day:%Y%m%d}"
