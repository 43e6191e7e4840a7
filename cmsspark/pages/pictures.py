"""What a day or period was used for, as pictures: small tables made from the stored
report, and their charts.

:func:`sum_use` sums the stored rows; :func:`pictures` draws the sums. Both take what
      they show and read no file. A page embeds the pictures, ``cmsspark report`` writes
      each to a file. Jobs are not accesses: they are a number of their own or, where
      the rows have jobs only, what all pictures are about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.base.errors import CmssparkError
from cmsspark.base.periods import Interval, Period, between
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.filesystems.storage import Files
from cmsspark.pages import charts
from cmsspark.pages.svg import REST, Chart, si
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_BY_NAME
from cmsspark.store import results
from cmsspark.store.own_jobs import Job
from cmsspark.store.part_files import stored_parts
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import part_rows, table_rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of ``data_aggregation`` and ``period_aggregation`` that pictures need.
COLUMNS: Final = (
    "stream",
    "dataset_name",
    "site_name",
    "app",
    "nacc",
    "remote_nacc",
    "read_bytes",
    "cpu_time",
    "data_tier",
)
_TOP: Final = 10
_HEAT_SITES: Final = 12
_HEAT_TIERS: Final = 8
_UNKNOWN: Final = "unknown"


class Use(msgspec.Struct, frozen=True):
    """The sums behind the pictures of one day or period: of its accesses or, where
    ``unit`` is ``jobs``, of its jobs.

    ``job_count``: jobs beside the accesses; None where there are none, or nothing else.
    ``cpu_hours`` and ``tiers_cpu_hours`` are of all streams: what has CPU time is a
    job's. ``datasets``, ``sites`` and ``tiers_cpu_hours`` begin with the largest.
    ``heat``: the count by (site, data tier). ``places``: for each stream its local and
    remote ones, and those that do not say. ``trend``: the count by stream for each of
    ``days``, None for a day that is not stored.
    """

    nacc: int
    dataset_count: int
    site_count: int
    read_bytes: int | None
    cpu_hours: float | None
    remote_share: float | None
    datasets: list[tuple[str, int]]
    sites: list[tuple[str, int]]
    heat: dict[tuple[str, str], int]
    places: list[tuple[str, tuple[int, int, int]]]
    tiers_cpu_hours: list[tuple[str, float]]
    days: list[date] = msgspec.field(default_factory=list)
    trend: dict[str, list[int | None]] = msgspec.field(default_factory=dict)
    unit: str = "accesses"
    job_count: int | None = None


class Picture(msgspec.Struct, frozen=True):
    """One picture: the name of its file, its title, what it shows with the unit, and the chart."""

    name: str
    title: str
    about: str
    chart: Chart


def sum_use(rows: pa.Table, by_day: Mapping[date, Mapping[str, int] | None] | None = None) -> Use:
    """Return the sums of stored rows with the columns ``COLUMNS``.

    ``by_day``: ``nacc`` of the streams that were counted on the days around, in order;
    None for a day that is not stored.
    """
    by_day = by_day or {}
    accesses, jobs = (
        _of_streams(rows, is_of_accesses=True),
        _of_streams(rows, is_of_accesses=False),
    )
    is_of_jobs = bool(jobs.num_rows) and not accesses.num_rows
    counted = jobs if is_of_jobs else accesses
    by_dataset, by_site, streams = (
        _sums(counted, name) for name in ("dataset_name", "site_name", "stream")
    )
    that_say = sum_rows(counted.filter(counted["remote_nacc"].is_valid()), ["stream"], ["nacc"])
    known_by_stream = {row["stream"]: row["nacc"] for row in that_say}
    known_nacc = sum(known_by_stream.values())
    cpu_seconds = charts.sum_known(row["cpu_time"] for row in _sums(rows, "stream"))
    by_tier = [
        (row["data_tier"] or _UNKNOWN, row["cpu_time"] / 3600)
        for row in _sums(rows, "data_tier")
        if row["cpu_time"]
    ]
    names = dict.fromkeys(
        name for counts in by_day.values() for name, count in (counts or {}).items() if count
    )
    return Use(
        nacc=sum(row["nacc"] for row in streams),
        dataset_count=len(by_dataset),
        site_count=len([row for row in by_site if row["site_name"] != _UNKNOWN]),
        read_bytes=charts.sum_known(row["read_bytes"] for row in streams),
        cpu_hours=None if cpu_seconds is None else cpu_seconds / 3600,
        remote_share=sum(row["remote_nacc"] or 0 for row in streams) / known_nacc
        if known_nacc
        else None,
        datasets=_largest(by_dataset, "dataset_name", _TOP),
        sites=_largest(by_site, "site_name", _TOP),
        heat={
            (row["site_name"], row["data_tier"] or _UNKNOWN): row["nacc"]
            for row in sum_rows(counted, ["site_name", "data_tier"], ["nacc"])
        },
        places=[
            (row["stream"], _local_remote(row, known_by_stream.get(row["stream"], 0)))
            for row in sorted(streams, key=lambda row: -row["nacc"])
        ],
        tiers_cpu_hours=sorted(by_tier, key=lambda entry: -entry[1])[:_TOP],
        days=list(by_day),
        trend={
            name: [(counts or {}).get(name) for counts in by_day.values()]
            for name in names
            if (name in ACCESS_STREAMS) != is_of_jobs
        },
        unit="jobs" if is_of_jobs else "accesses",
        job_count=sum(row["nacc"] for row in _sums(jobs, "stream"))
        if jobs.num_rows and not is_of_jobs
        else None,
    )


def pictures(use: Use, about: str) -> list[Picture]:
    """Return the pictures of a day or period; ``about`` says when: ``on 15 January 2026``."""
    unit = use.unit
    heat_sites = charts.rank_names(use.heat, 0)[:_HEAT_SITES]
    tiers = charts.rank_names(use.heat, 1)[:_HEAT_TIERS]
    shown = [
        Picture(
            "datasets",
            "Most read datasets",
            f"{unit} {about}, of {pluralize(use.dataset_count, 'dataset')}",
            charts.bars(use.datasets, about=f"most read datasets, {unit}"),
        ),
        Picture(
            "sites",
            "Sites that serve most",
            f"{unit} {about}, of {pluralize(use.site_count, 'site')}",
            charts.bars(use.sites, about=f"sites, {unit}"),
        ),
        Picture(
            "heat",
            "What is read where",
            f"{unit} by site and data tier {about}; colours on a logarithmic scale",
            charts.heat_map(heat_sites, tiers, use.heat, about=f"{unit} by site and data tier"),
        ),
        Picture(
            "remote",
            "Local and remote reads",
            f"share of {unit} {about}: at the job's own site, from another site, or not recorded by the log",
            charts.shares(
                use.places,
                ("local", "remote", "not known"),
                ("c1", "c2", REST),
                about="local and remote",
            ),
        ),
    ]
    if use.tiers_cpu_hours:
        chart = charts.bars(use.tiers_cpu_hours, about="CPU hours by data tier")
        shown.append(Picture("cpu", "CPU time by data tier", f"CPU hours of jobs {about}", chart))
    if len(use.days) > 1:
        chart = charts.stacked_days(use.days, use.trend, about=f"{unit} a day by stream")
        text = f"{unit} a day by stream, {use.days[0]} to {use.days[-1]}"
        shown.insert(2, Picture("trend", f"{unit.capitalize()} day by day", text, chart))
    return shown


def facts(use: Use) -> list[tuple[str, str]]:
    """Return the numbers above the pictures, each with what it is."""
    shown_facts = [
        (si(use.nacc), use.unit),
        (f"{use.dataset_count:,}", "datasets read"),
        (f"{use.site_count:,}", "sites"),
    ]
    if use.read_bytes is not None:
        shown_facts.append((str(volume(use.read_bytes)), "read"))
    if use.job_count is not None:
        shown_facts.append((si(use.job_count), "jobs (not accesses)"))
    if use.cpu_hours is not None:
        shown_facts.append((si(use.cpu_hours), "CPU hours"))
    if use.remote_share is not None:
        shown_facts.append((f"{use.remote_share:.1%}", "read from another site"))
    return shown_facts


def _of_streams(rows: pa.Table, *, is_of_accesses: bool) -> pa.Table:
    """Return the rows of the streams that count accesses, or of the others."""
    import pyarrow.compute as pc

    from cmsspark.base.buffers import array

    chosen = pc.is_in(rows["stream"].cast("string"), value_set=array(ACCESS_STREAMS, "string"))
    return rows.filter(chosen if is_of_accesses else pc.invert(chosen))


def _sums(rows: pa.Table, key: str) -> list[dict[str, Any]]:
    """Sums of the measures by key; a sum over nothing is None."""
    return sum_rows(rows, [key], ["nacc", "remote_nacc", "read_bytes", "cpu_time"])


def _largest(sums: Sequence[Mapping[str, Any]], key: str, count: int) -> list[tuple[str, int]]:
    ordered = sorted(sums, key=lambda row: (-row["nacc"], str(row[key])))
    return [(str(row[key]), row["nacc"]) for row in ordered[:count]]


def _local_remote(row: Mapping[str, Any], known_nacc: int) -> tuple[int, int, int]:
    """Local, remote and unknown accesses of a stream; ``known_nacc``: those that say
    whether they are remote.
    """
    remote = row["remote_nacc"] or 0
    return known_nacc - remote, remote, row["nacc"] - known_nacc


# What a stored day or period was used for: its sums, its pictures and the title of its
# page.

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


def sum_rows(rows: pa.Table, keys: Sequence[str], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each combination of ``keys``, which are texts; the sum of nulls is None.

    ``Table.group_by`` would import pandas, a quarter of a second of each run that writes a page.
    """
    import numpy as np

    from cmsspark.base.buffers import is_there, to_numpy
    from cmsspark.counting.sums import Nullable, find_runs, sum_by_key

    def to_values(column: pa.ChunkedArray) -> Nullable:
        kind = np.float64 if str(column.type) == "double" else np.int64
        values = column if kind is np.float64 else column.cast("int64")
        return Nullable(to_numpy(values, kind), is_there(column) if column.null_count else None)

    numbers, texts = [], []
    group = np.zeros(rows.num_rows, np.int64)
    for name in keys:
        column = rows[name].cast("string").combine_chunks().dictionary_encode()
        texts.append([*column.dictionary.to_pylist(), None])
        numbers.append(to_numpy(column.indices, np.int32, len(texts[-1]) - 1))
        group = group * len(texts[-1]) + numbers[-1]
    runs = find_runs(group)
    columns = {name: to_values(rows[name]) for name in measures}
    sums = sum_by_key(runs, columns, is_capped=True)
    first = runs.first
    result = [
        [values[row] for row in of_rows[first].tolist()]
        for values, of_rows in zip(texts, numbers, strict=True)
    ]
    for total, is_valid in sums.values():
        is_sum = [True] * len(total) if is_valid is None else is_valid.tolist()
        result.append(
            [value if valid else None for value, valid in zip(total.tolist(), is_sum, strict=True)]
        )
    return [dict(zip((*keys, *measures), row, strict=True)) for row in zip(*result, strict=True)]
