"""Periods: ISO weeks, calendar months and any other range of whole days, in UTC.

As an interval a period is half-open, ``[first, end)``. Each period has exactly one
name, which paths and document ids use: a range that equals a week or a month has the
name of that week or month.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.base.text.terminal import is_or_are

#: About ten years. The limit catches a mistyped year before each of its days is looked up.
MAX_DAYS: Final = 3_660
_ONE_DAY: Final = timedelta(days=1)
_WEEK: Final = re.compile(r"(\d{4})-?[Ww](\d{2})", re.ASCII)
_MONTH: Final = re.compile(r"(\d{4})-?(\d{2})", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class Period(msgspec.Struct, frozen=True, order=True):
    """The days from ``first`` to the one before ``end``.

    Example:
        >>> period = Period(date(2026, 11, 9), date(2026, 11, 16))
        >>> str(period), period.is_week, period.last
        ('2026-W46', True, datetime.date(2026, 11, 15))
    """

    first: date
    end: date

    def __post_init__(self) -> None:
        assert self.first < self.end

    @property
    def last(self) -> date:
        """The last day of the period."""
        return self.end - _ONE_DAY

    @property
    def days(self) -> list[date]:
        """The days of the period, in order."""
        return [
            self.first + timedelta(days=number) for number in range((self.end - self.first).days)
        ]

    @property
    def is_week(self) -> bool:
        """Whether it is an ISO week, from Monday to Sunday."""
        return (self.end - self.first).days == 7 and self.first.isoweekday() == 1

    @property
    def is_month(self) -> bool:
        """Whether it is a calendar month."""
        return self.first.day == 1 and self.end == _next_month(self.first)

    def isoformat(self) -> str:
        """Return the name: ``2026-W46``, ``2026-11``, or ``2026-11-01--2026-11-10``
        (last day included).
        """
        if self.is_week:
            year, week, _ = self.first.isocalendar()
            return f"{year:04}-W{week:02}"
        if self.is_month:
            return f"{self.first:%Y-%m}"
        return f"{self.first}--{self.last}"

    def __str__(self) -> str:
        return self.isoformat()

    @property
    def options(self) -> str:
        """The command-line options that select the period."""
        if self.is_week:
            return f"--week {self}"
        return f"--month {self}" if self.is_month else f"--from {self.first} --to {self.last}"


#: The interval that a result covers.
Interval = date | Period


def first_day(interval: Interval) -> date:
    """Return the first day of a period, or the day itself."""
    return interval.first if isinstance(interval, Period) else interval


def options(interval: Interval) -> str:
    """Return the command-line options that select the day or period.

    Example:
        >>> options(month("2026-11", today=date(2026, 11, 20))), options(date(2026, 11, 1))
        ('--month 2026-11', '--date 2026-11-01')
    """
    return interval.options if isinstance(interval, Period) else f"--date {interval}"


def week(text: str, today: date) -> Period:
    """Return ``2026-W46``, ``2026W46``, or ``last``: the last week that ended before ``today``.

    Raises UsageError (2) for other formats, weeks that do not exist, and weeks that
    begin after ``today``.

    Example:
        >>> week("2026-W46", today=date(2026, 11, 20))
        Period(first=datetime.date(2026, 11, 9), end=datetime.date(2026, 11, 16))
        >>> week("last", today=date(2026, 11, 20)).options
        '--week 2026-W46'
    """
    if text == "last":
        monday = today - timedelta(days=today.isoweekday() + 6)
        return Period(monday, monday + timedelta(days=7))
    match = _WEEK.fullmatch(text)
    if match is None:
        raise UsageError(f"not a week: {text!r}", next_step="write it as 2026-W46, or last")
    try:
        monday = date.fromisocalendar(int(match[1]), int(match[2]), 1)
        period = Period(monday, monday + timedelta(days=7))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is not a calendar week ({error})", next_step="a year has 52 or 53 weeks"
        ) from None
    return _require_begun(period, today)


def month(text: str, today: date) -> Period:
    """Return ``2026-11``, ``202611``, or ``last``: the last month that ended before
    ``today``. Raises as :func:`week`.

    Example:
        >>> len(month("2026-11", today=date(2026, 11, 20)).days)
        30
    """
    if text == "last":
        end = today.replace(day=1)
        return Period((end - _ONE_DAY).replace(day=1), end)
    match = _MONTH.fullmatch(text)
    if match is None:
        raise UsageError(f"not a month: {text!r}", next_step="write it as 2026-11, or last")
    try:
        first = date(int(match[1]), int(match[2]), 1)
        period = Period(first, _next_month(first))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is not a calendar month ({error})", next_step="write it as 2026-11"
        ) from None
    return _require_begun(period, today)


def between(first: date, last: date) -> Period:
    """Return the days from ``first`` to ``last``, both included. Raises UsageError (2)
    where there are none or too many.

    Example:
        >>> str(between(date(2026, 11, 1), date(2026, 11, 10)))
        '2026-11-01--2026-11-10'
        >>> str(between(date(2026, 11, 1), date(2026, 11, 30)))
        '2026-11'
    """
    if first > last:
        raise UsageError(f"--from {first} is after --to {last}", next_step="swap them")
    if (last - first).days >= MAX_DAYS or last == date.max:
        raise UsageError(
            f"{first} to {last} is longer than {MAX_DAYS:,} days", next_step="give a shorter range"
        )
    return Period(first, last + _ONE_DAY)


def named(name: str) -> Interval:
    """Return the day or period of the given name, as used by folders of the store.
    Raises ValueError for any other text.

    Example:
        >>> named("2026-01-15")
        datetime.date(2026, 1, 15)
        >>> named("2026-W46").is_week
        True
    """
    first, dashes, last = name.partition("--")
    if _DAY.fullmatch(first) and not dashes:
        return date.fromisoformat(first)
    try:
        interval: Interval
        if dashes and _DAY.fullmatch(first) and _DAY.fullmatch(last):
            interval = between(date.fromisoformat(first), date.fromisoformat(last))
        else:
            interval = week(name, date.max) if "W" in name else month(name, date.max)
    except UsageError as error:
        raise ValueError(error.problem) from None
    if interval.isoformat() != name:
        raise ValueError(f"{name} is another spelling of {interval}")
    return interval


def spans(chosen: Sequence[date]) -> str:
    """Return days for display, consecutive ones merged, at most ten ranges.

    Example:
        >>> spans([date(2026, 11, 8), date(2026, 11, 3), date(2026, 11, 7)])
        '2026-11-03, 2026-11-07 to 2026-11-08'
    """
    runs: list[list[date]] = []
    for day in sorted(chosen):
        if runs and day - runs[-1][-1] == _ONE_DAY:
            runs[-1][1:] = [day]
        else:
            runs.append([day])
    ranges = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[1]}" for run in runs[:10]]
    return ", ".join(ranges) + (f" and {len(runs) - 10} more" if len(runs) > 10 else "")


def not_stored(missing: Sequence[date], period: Period) -> str:
    """Return a clause on the days of a period that are not stored.

    Example:
        >>> january = between(date(2026, 1, 1), date(2026, 1, 31))
        >>> not_stored([date(2026, 1, 2), date(2026, 1, 3)], january)
        '2 of the 31 days of 2026-01 are not stored: 2026-01-02 to 2026-01-03'
    """
    if len(period.days) == 1:
        return f"{missing[0]} is not stored"
    days = f"{len(missing)} of the {len(period.days)} days of {period}"
    return f"{days} {is_or_are(len(missing))} not stored: {spans(missing)}"


def start_ms(interval: Interval) -> int:
    """Return the first instant of a day or period, UTC milliseconds since 1970."""
    return dates.start_ms(first_day(interval))


def _next_month(first: date) -> date:
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)


def _require_begun(period: Period, today: date) -> Period:
    if period.first > today:
        raise UsageError(
            f"{period} is in the future (today is {today} in UTC)",
            next_step="give one that has begun",
        )
    return period
