"""Days: calendar dates in UTC, parsed once at the command line.

A day is a ``datetime.date``; as an interval it is half-open, ``[00:00, next 00:00)``
UTC. Timestamps are integers whose size determines their unit.
"""

from __future__ import annotations

import re
import time
import uuid
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

from cmsspark.base.errors import UsageError

# The UTC clock, and the formats of instants in names, files and messages.

_STAMP: Final = "%Y%m%dT%H%M%S"
_RUN_STAMP: Final = f"{_STAMP}Z"


def now_ms() -> int:
    """Return the current instant."""
    return time.time_ns() // 1_000_000


def utc(ms: int) -> datetime:
    """Return the instant as a timezone-aware datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def iso(ms: int | None = None) -> str:
    """Return an instant, by default now, as ``2026-01-15T06:00:00+00:00``.

    Example:
        >>> iso(1_768_435_200_000)
        '2026-01-15T00:00:00+00:00'
    """
    return utc(now_ms() if ms is None else ms).isoformat(timespec="seconds")


def stamp() -> str:
    """Return the current instant as ``20260115T060000``, for file names."""
    return utc(now_ms()).strftime(_STAMP)


def new_run_id(ms: int | None = None) -> str:
    """Return a run id, ``20260115T060000Z-1a2b3c``: the start of the run, by default
    now, and a random part.
    """
    return f"{utc(now_ms() if ms is None else ms).strftime(_RUN_STAMP)}-{uuid.uuid4().hex[:6]}"


def run_began_ms(run_id: str) -> int:
    """Return the start of the run with that id. Raises ValueError for a text that is not a run id.

    Example:
        >>> iso(run_began_ms("20260115T060000Z-1a2b3c"))
        '2026-01-15T06:00:00+00:00'
    """
    began = datetime.strptime(run_id.partition("-")[0], _RUN_STAMP).replace(tzinfo=UTC)
    return int(began.timestamp()) * 1000


def to_second(ms: int) -> str:
    """Return ``2026-01-15 06:00:00``, for display where the context says UTC."""
    return f"{utc(ms):%Y-%m-%d %H:%M:%S}"


def to_minute(ms: int) -> str:
    """Return ``2026-01-15 06:00 UTC``, for display.

    Example:
        >>> to_minute(1_768_435_200_000)
        '2026-01-15 00:00 UTC'
    """
    return f"{utc(ms):%Y-%m-%d %H:%M} UTC"


class Clock(Protocol):
    """The time as a seam: tests pass their own clock and do not sleep."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real time."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_DAY = re.compile(
    r"(\d{4})(\d{2})(\d{2})|(\d{4})-(\d{2})-(\d{2})|(\d{4})/(\d{2})/(\d{2})", re.ASCII
)


def today() -> date:
    """Return the current day in UTC."""
    return utc(now_ms()).date()


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
