"""What a stored day or period was used for: its sums, its pictures and the title of its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Final

from cmsspark.base.errors import CmssparkError
from cmsspark.base.periods import Interval, Period, between
from cmsspark.base.schemas import stored_table
from cmsspark.counting.table_sums import sum_rows
from cmsspark.filesystems.storage import Files
from cmsspark.pages.pictures import COLUMNS, Use, sum_use
from cmsspark.sources.registry import STREAMS_BY_NAME
from cmsspark.store import results
from cmsspark.store.job_index import Job
from cmsspark.store.part_checks import stored_parts
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import part_rows, table_rows

#: Days of the trend of a day.
TREND_DAYS: Final = 28
#: A longer period has no picture day by day: its days' files would all be read.
_MAX_TREND_DAYS: Final = 400


def has_use(job: Job) -> bool:
    """Return whether a job's first table counts accesses or jobs."""
    return "nacc" in stored_table(job.tables[0]).names


def load_use(files: Files, fout: str, job: Job, current: CurrentTable, interval: Interval) -> Use:
    """Return the use of a day or period from its stored report; the trend from the days around it."""
    rows = table_rows(files, current, job.tables[0], COLUMNS)
    return sum_use(rows, _by_day(files, fout, job, interval))


def _by_day(
    files: Files, fout: str, job: Job, interval: Interval
) -> dict[date, Mapping[str, int] | None]:
    """Accesses or jobs by stream: of a period's days, or of the days up to a day, from
    the first one that is stored.
    """
    if isinstance(interval, Period):
        days = interval.days if len(interval.days) <= _MAX_TREND_DAYS else []
    else:
        days = between(interval - timedelta(days=TREND_DAYS - 1), interval).days
    table = job.tables[0] if not job.of_periods else "data_aggregation"
    owner = job.name if not job.of_periods else "data_aggregation"
    counts: dict[date, Mapping[str, int] | None] = {
        day: _of_day(files, fout, owner, table, day) for day in days
    }
    first = next((day for day in days if counts[day] is not None), None)
    if isinstance(interval, Period) or first is None:
        return counts
    return {day: count for day, count in counts.items() if day >= first}


def _of_day(files: Files, fout: str, job: str, table: str, day: date) -> dict[str, int] | None:
    """Return the counts of a day; 0 for a stream that was counted and has no record.
    None where it cannot be read.
    """
    try:
        current = results.current(files, fout, job, table, day)
        counted = set(current.manifest.streams) - set(current.manifest.missing_streams)
        return dict.fromkeys(sorted(counted), 0) | sum_streams(files, current, table)
    except CmssparkError:
        # Not stored, or damaged: the day itself says so where it is asked for.
        return None


def sum_streams(files: Files, current: CurrentTable, table: str) -> dict[str, int]:
    """Return the accesses or jobs of a stored table by stream."""
    sums = Counter[str]()
    for part in stored_parts(files, current, table):
        rows = part_rows(files, part, stored_table(table), ("stream", "nacc"))
        sums.update({row["stream"]: row["nacc"] for row in sum_rows(rows, ["stream"], ["nacc"])})
    return dict(sums)


def make_title(job: Job, interval: Interval) -> str:
    """Return the title of a page: what it is about, and when."""
    label = format_when(interval)
    if job.name == "data_aggregation" or job.of_periods:
        return f"What CMS read {label}"
    if job.streams:
        stream = STREAMS_BY_NAME[job.streams[0]]
        return f"What was read {label}, by the logs of {stream.title}"
    return f"{job.about}, {label}"


def format_when(interval: Interval) -> str:
    """Return the day or period in words.

    Example:
        >>> format_when(date(2026, 1, 15))
        'on 15 January 2026'
        >>> format_when(between(date(2026, 11, 9), date(2026, 11, 15)))
        'in week 46 of 2026 (9 to 15 November 2026)'
    """
    if not isinstance(interval, Period):
        return f"on {_words(interval)}"
    first, last = interval.first, interval.last
    begin = (
        f"{first.day}" if (first.year, first.month) == (last.year, last.month) else _words(first)
    )
    span = f"{begin} to {_words(last)}"
    if interval.is_week:
        year, week, _ = first.isocalendar()
        return f"in week {week} of {year} ({span})"
    return f"in {first:%B %Y}" if interval.is_month else f"from {span}"


def _words(day: date) -> str:
    return f"{day.day} {day:%B %Y}"
