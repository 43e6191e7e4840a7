"""The UTC clock, and the formats of instants in names, files and messages.

An instant is an integer of UTC milliseconds since 1970. See :mod:`cmsspark.base.dates`
for calendar days.
"""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Final, Protocol

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
