"""Whether a day's inputs are ready to read, judged from listings alone: complete,
unchanged, and as large as usual.

Not ready is no failure: the reasons say why, ``retry_ms`` when to check again. After
``patience_hours`` the day is read anyway, with a warning.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.text.terminal import pluralize
from cmsspark.store import day_states

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
#: Earlier days that are needed to know the usual size.
USUAL_DAYS: Final = 3
#: The number of missing parts that a warning names.
_NAMED_GAPS: Final = 5
_PART: Final = re.compile(r"part-(?:[mr]-)?([0-9]{1,9})(?![0-9])", re.ASCII)


_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Rules(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """``quiet_minutes``: so long nothing was written. ``smallest_share``: of the usual
    bytes. ``patience_hours``: after the day's end, small days and better dumps are no
    longer waited for. ``dump_wait_days``: for the dump after the day.
    """

    quiet_minutes: _NotNegative = 10
    smallest_share: _NotNegative = 0.5
    patience_hours: _NotNegative = day_states.PATIENCE_HOURS
    dump_wait_days: _NotNegative = 2


@dataclass(frozen=True)
class Listing:
    """A source's files of a day: sizes in bytes and the latest mtime in UTC ms."""

    source: str
    sizes: tuple[int, ...]
    newest_ms: int


@dataclass(frozen=True)
class Readiness:
    """``reasons`` not to read yet, none when ready; ``warnings`` in any case."""

    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: UTC ms of the next check, where there are reasons.
    retry_ms: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there are no reasons to wait."""
        return not self.reasons


def together(parts: Iterable[Readiness]) -> Readiness:
    """Return all reasons and warnings; the next check is when the last reason may be gone."""
    every = list(parts)
    retries = [part.retry_ms for part in every if part.retry_ms is not None]
    return Readiness(
        tuple(reason for part in every for reason in part.reasons),
        tuple(warning for part in every for warning in part.warnings),
        max(retries, default=None),
    )


def judge_stream(
    listing: Listing, before: Sequence[Sequence[int]], day: date, now_ms: int, rules: Rules
) -> Readiness:
    """Return whether a source's files are complete. ``before``: sizes of the files of
    each trailing day.

    Empty parts are ignored: Spark and sqoop write them.
    """
    writing = judge_writing(f"{listing.source}: the last file", listing.newest_ms, now_ms, rules)
    if not writing.is_ready:
        return writing
    usual = [sum(sizes) for sizes in before if sum(sizes)]
    if len(usual) < USUAL_DAYS:
        return Readiness()
    median, total = statistics.median(usual), sum(listing.sizes)
    if total < rules.smallest_share * median:
        text = f"{listing.source}: {total:,} bytes, the median of {pluralize(len(usual), 'day')} before is {int(median):,}"
        if now_ms < _patience_ends(day, rules):
            return Readiness((text,), (), min(now_ms + HOUR_MS, _patience_ends(day, rules)))
        return Readiness((), (f"{text}; the time to wait for it is over",))
    parts, usual_parts = (
        len(listing.sizes),
        statistics.median(len(sizes) for sizes in before if sum(sizes)),
    )
    if parts < rules.smallest_share * usual_parts:
        return Readiness(
            (),
            (
                f"{listing.source}: {pluralize(parts, 'file')}, the median of days before is {usual_parts:g}",
            ),
        )
    return Readiness()


def judge_parts(source: str, names: Iterable[str], before: Sequence[Iterable[str]]) -> Readiness:
    """Return a warning where part numbers are missing and none was on the days
    ``before``: a part may be lost.

    No warning where numbers are usually missing: Spark and sqoop write no file for an empty part.
    """
    usual = [numbers for numbers in map(_numbers, before) if numbers]
    numbers = _numbers(names)
    gaps = _gaps(numbers)
    if not gaps or len(usual) < USUAL_DAYS or any(map(_gaps, usual)):
        return Readiness()
    present = set(numbers)
    missing_numbers = (str(number) for number in range(numbers[-1]) if number not in present)
    first = list(itertools.islice(missing_numbers, _NAMED_GAPS))
    gap_list = ", ".join(first) + (f" and {gaps - len(first)} more" if gaps > len(first) else "")
    warning = f"{source}: no part {gap_list} of 0 to {numbers[-1]}; the {pluralize(len(usual), 'day')} before left out none"
    return Readiness((), (warning,))


def _numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of part files, in order."""
    return sorted({int(match[1]) for match in map(_PART.match, names) if match})


def _gaps(numbers: Sequence[int]) -> int:
    """Return the number of missing numbers below the last."""
    return numbers[-1] + 1 - len(numbers) if numbers else 0


def judge_dump(
    kind: str, dump_day: date | None, day: date, now_ms: int, rules: Rules
) -> Readiness:
    """Return whether to wait for a better dump: the dump of a day is dated after it (rule 17).

    ``dump_day`` is None for the legacy folder without a date, which no better dump replaces.
    """
    if dump_day is None or dump_day > day:
        return Readiness()
    ends = _day_end(day) + int(rules.dump_wait_days * dates.DAY_MS)
    if now_ms < ends:
        reason = f"{kind}: no complete dump dated after {day} yet, the best is of {dump_day}"
        return Readiness((reason,), (), min(now_ms + HOUR_MS, ends))
    return Readiness(
        (), (f"{kind}: the dump of {dump_day} is taken, none dated after {day} came in time",)
    )


def judge_writing(subject: str, newest_ms: int, now_ms: int, rules: Rules) -> Readiness:
    """Return whether files are still being written: the newest, which ``subject``
    names, is younger than ``quiet_minutes``.
    """
    quiet_ms = int(rules.quiet_minutes * MINUTE_MS)
    age_ms = now_ms - newest_ms
    # A file from the future means a wrong clock, not that it is being written.
    if not -quiet_ms < age_ms < quiet_ms:
        return Readiness()
    reason = f"{subject} was written {max(age_ms, 0) // MINUTE_MS} minutes ago"
    return Readiness((reason,), (), newest_ms + quiet_ms)


def missing(text: str, now_ms: int) -> Readiness:
    """Return a missing input, which ``text`` names."""
    return Readiness((text,), (), now_ms + HOUR_MS)


def is_overdue(day: date, now_ms: int, rules: Rules) -> bool:
    """Return whether a day that is still not ready should be reported."""
    return day_states.is_overdue(day, now_ms, rules.patience_hours)


def _day_end(day: date) -> int:
    return dates.timestamp_ms_bounds(day)[1]


def _patience_ends(day: date, rules: Rules) -> int:
    return day_states.patience_ends(day, rules.patience_hours)
