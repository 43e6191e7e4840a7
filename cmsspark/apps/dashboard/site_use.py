"""The use of sites: what is read at each, what is local and remote, and what lies there unused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from statistics import median
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from cmsspark.apps.dashboard.page_request import PageRequest
from cmsspark.apps.dashboard.rollup_query import people, sums
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.widgets import (
    Column,
    Figure,
    HeatMap,
    Section,
    Table,
    shown,
    si,
)
from cmsspark.base import dates
from cmsspark.base.text.terminal import pluralize
from cmsspark.pages.charts import rank_names
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS
from cmsspark.store.query.database import Database
from cmsspark.store.stored_columns import REPLICA_TABLES


def count_users(snapshot: Snapshot, chosen: Selection) -> dict[str, int | None]:
    """Return the distinct users of each site over the period; None where its days have
    two pseudonym keys.
    """
    names = snapshot.names["site_name"]
    if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
        return dict.fromkeys(names)
    sets = snapshot.cached(
        ("users_of_sites", chosen), lambda: people(snapshot, chosen, "site_name")
    )
    return {name: sets.get((name,), 0).bit_count() for name in names}


def last_days(snapshot: Snapshot, site: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read each dataset at a site."""

    def make() -> dict[str, date]:
        rows = snapshot.query(
            "SELECT dataset_name, day FROM datasets JOIN "
            f"(SELECT dataset, max(last_day) AS day FROM {snapshot.rows('site_datasets')} "
            "WHERE site_name = ? AND last_day IS NOT NULL GROUP BY 1) USING (dataset)",
            [snapshot.codes["site_name"].get(site, -1)],
        )
        return dict(rows)

    return snapshot.cached(("last_days", site), make)


def unused(
    snapshot: Snapshot, database: Database, site: str, weeks: int, kind: str
) -> tuple[date | None, int, int, list[tuple[Any, ...]]]:
    """Replicas at a site of datasets that no access and no job read there in the last
    weeks up to the newest day.

    Returns the day of the replica snapshot (None where none is stored), the bytes and
    number of all its replicas at the site, and for each unused one (dataset, bytes,
    newest replica ms, accesses elsewhere, jobs elsewhere), the largest first.
    """
    newest_replicas = database.newest(REPLICA_TABLES)
    if newest_replicas is None:
        return None, 0, 0, []
    as_of, table = newest_replicas
    replicas = database.query(
        f"SELECT dataset_name, present_bytes, newest_replica_ms FROM {table} "
        "WHERE day = ? AND site_name = ? AND kind = ? AND present_bytes > 0",
        [as_of, site, kind],
    ).table
    columns = [column.to_pylist() for column in replicas.columns]
    first, last = window(snapshot, weeks)
    read = {name for name, day in last_days(snapshot, site).items() if day >= first}
    elsewhere = snapshot.cached(("uses", first, last), lambda: _uses(snapshot, first, last))
    rows = [
        (name, size, newest, *elsewhere.get(name, (0, 0)))
        for name, size, newest in zip(*columns, strict=True)
        if name not in read
    ]
    rows.sort(key=lambda row: (-row[1], row[0] or ""))
    return as_of, sum(columns[1]), replicas.num_rows, rows


def window(snapshot: Snapshot, weeks: int) -> tuple[date, date]:
    """Return the first and the last of the N × 7 days up to the newest stored one."""
    last = snapshot.days[-1]
    return last - timedelta(days=7 * weeks - 1), last


def _uses(snapshot: Snapshot, first: date, last: date) -> dict[str, tuple[int, int]]:
    """Accesses and jobs of each dataset."""
    columns = ("nacc", "job_count")
    (rows,) = sums(snapshot, Selection(first, last), ("dataset_name",), columns=columns)
    return {name: (nacc or 0, jobs or 0) for name, nacc, jobs in rows}


# Days that are unlike those before, and the site behind each.

#: A day is compared with the same day of so many weeks before, of which so many must be
#: stored; it is unusual with less than 1 / factor or more than factor times their median.
_WEEKS_BEFORE, _LEAST_WEEKS, _FACTOR = 4, 2, 2
#: Unusual days of which the site is looked for.
_EXPLAINED: Final = 20


def unusual_days(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """Return (day, stream, accesses or jobs, their usual number, site, its number, its
    usual number) of the days that are unlike those before, the largest difference first.

    The usual number is the median of the same weekday in the four weeks before. The
    site is that whose number differs most; None beyond the first rows, and with a
    filter on data tiers or campaigns.
    """
    chosen.check(FILTERS)
    return snapshot.cached(("unusual", chosen), lambda: _unusual_days(snapshot, chosen))


def _unusual_days(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    first, columns = dates.days_before(chosen.first, 7 * _WEEKS_BEFORE), ("nacc", "job_count")
    (rows,) = sums(snapshot, replace(chosen, first=first), ("day", "stream"), columns=columns)
    counts = {(day, stream): nacc or jobs or 0 for day, stream, nacc, jobs in rows}
    streams = snapshot.state.streams
    unusual: list[tuple[date, str, int, float]] = []
    for day in (day for day in snapshot.days if chosen.first <= day <= chosen.last):
        for stream in {*streams.get(day, ())} & {
            *(chosen.values("stream") or (*ACCESS_STREAMS, *STREAMS_OF_JOBS))
        }:
            before = [back for back in _same_weekdays(day) if stream in streams.get(back, ())]
            if len(before) < _LEAST_WEEKS:
                continue
            usual = median(counts.get((back, stream), 0) for back in before)
            count = counts.get((day, stream), 0)
            if usual and not usual <= _FACTOR * count <= _FACTOR**2 * usual:
                unusual.append((day, stream, count, usual))
    unusual.sort(key=lambda row: (-abs(row[2] - row[3]), row[0], row[1]))
    sites = {}
    if not (chosen.values("data_tier") or chosen.values("campaign")):
        sites = _sites_behind(snapshot, chosen, [row[:2] for row in unusual[:_EXPLAINED]])
    return [(*row, *sites.get(row[:2], (None, None, None))) for row in unusual]


def _same_weekdays(day: date) -> list[date]:
    return [dates.days_before(day, 7 * weeks) for weeks in range(1, _WEEKS_BEFORE + 1)]


def _sites_behind(
    snapshot: Snapshot, chosen: Selection, days: Sequence[tuple[date, str]]
) -> dict[tuple[date, str], tuple[str, int, float]]:
    """Return of each day and stream the site that differs most from its usual number."""
    needed = sorted({back for day, _ in days for back in (day, *_same_weekdays(day))})
    if not needed:
        return {}
    on_days = replace(chosen, first=needed[0]).with_values("day", *needed)
    keys = ("day", "stream", "site_name")
    (rows,) = sums(snapshot, on_days, keys, columns=("nacc", "job_count"))
    counts: dict[tuple[date, str], dict[str, int]] = {}
    for day, stream, site, nacc, jobs in rows:
        counts.setdefault((day, stream), {})[site] = nacc or jobs or 0
    sites = {}
    for day, stream in days:
        now = counts.get((day, stream), {})
        before = [
            counts.get((back, stream), {})
            for back in _same_weekdays(day)
            if stream in snapshot.state.streams.get(back, ())
        ]
        usual = {
            site: median(entry.get(site, 0) for entry in before)
            for site in {*now, *(site for entry in before for site in entry)}
        }
        site = min(usual, key=lambda site: (-abs(now.get(site, 0) - usual[site]), site))
        sites[day, stream] = (site, now.get(site, 0), usual[site])
    return sites


# What lies at a site and what it will need: unused volume by age, the size of a cache,
# the forecast.

#: Weeks without a read at the site, of each age.
AGES: Final = (4, 12, 26, 52)
#: Share of requested bytes that a cache may miss.
TARGET: Final = 0.2


def age_figures(
    snapshot: Snapshot, database: Database, site: str, kind: str, weeks: int
) -> list[Figure]:
    """Return the replicas at a site by weeks without a read there, also by ``weeks``; of
    ages that are longer than the stored days there is one figure, of all these days.
    """
    newest = database.newest(REPLICA_TABLES)
    if newest is None:
        return []
    as_of, table = newest
    last = last_days(snapshot, site)
    replicas = database.query(
        f"SELECT dataset_name, present_bytes FROM {table} "
        "WHERE day = ? AND site_name = ? AND kind = ? AND present_bytes > 0",
        [as_of, site, kind],
    ).rows
    first_day, last_day = snapshot.days[0], snapshot.days[-1]
    ages = {age: window(snapshot, age)[0] for age in sorted({*AGES, weeks})}
    starts = {
        f"Unread for {pluralize(age, 'week')}": first
        for age, first in ages.items()
        if first >= first_day
    }
    if min(ages.values()) < first_day:
        starts[f"Unread since {first_day}"] = first_day
    figures = []
    for label, first in starts.items():
        unread = [size for name, size in replicas if name not in last or last[name] < first]
        size, note = sum(unread), pluralize(len(unread), "dataset")
        missing = (last_day - first).days + 1 - sum(day >= first for day in snapshot.days)
        note += f", {pluralize(missing, 'day')} not stored" if missing else ""
        note += ", from the first stored day" if first == first_day else ""
        figures.append(Figure(label, si(size, "B"), f"{size:,} B", note))
    return figures


def cache_figure(database: Database, site: str) -> Figure | None:
    """Return the smallest compared cache that misses at most ``TARGET``; None where
    none is stored.
    """
    rows = database.query(
        "SELECT period, policy, capacity_bytes, missed_bytes / requested_bytes AS missed FROM cache_comparison "
        "WHERE site_name = ? AND requested_bytes > 0 QUALIFY last_day = max(last_day) OVER () "
        "ORDER BY capacity_bytes, missed, policy",
        [site],
    ).rows
    if not rows:
        return None
    label = f"Cache that misses {TARGET:.0%} of bytes"
    for period, policy, capacity, missed in rows:
        if missed <= TARGET:
            return Figure(
                label,
                si(capacity, "B"),
                f"{capacity:,} B",
                f"{policy}, misses {missed:.1%} in {period}",
            )
    largest = rows[-1][2]
    return Figure(
        label,
        f"> {si(largest, 'B')}",
        f"{largest:,} B",
        f"the largest that was compared, in {rows[-1][0]}",
    )


# Which site read from which: parts of the page of all sites and of one site.

#: Sites of the matrix on each side, those with the most accesses.
_SITES: Final = 15
_ROWS: Final = 20
_ABOUT: Final = "Accesses of AAA whose records name the site of the reader and of the server."
_NAMES: Final = ("reader_site", "source_site")
_UNNAMED: Final = "not named in the log"


def matrix_sections(request: PageRequest, chosen: Selection) -> list[Section]:
    """Return the matrix of readers by sources; nothing where no pair is stored."""
    rows = _pairs(request, chosen, "reader_site IS NOT NULL AND source_site IS NOT NULL", _NAMES)
    if not rows:
        return []
    values = {(shown(reader), shown(source)): accesses for reader, source, accesses, _ in rows}
    readers, sources = (rank_names(values, side)[:_SITES] for side in (0, 1))
    values = {
        pair: count for pair, count in values.items() if pair[0] in readers and pair[1] in sources
    }
    links = {shown(site): request.site_link(site) for row in rows for site in row[:2]}
    every = pa.table([*zip(*rows, strict=True)], names=(*_NAMES, "accesses", "read_bytes"))
    caption = "Accesses by site of the reader (rows) and of the source (columns), the most used"
    heat = HeatMap("site_pairs", caption, readers, sources, values, every, "count", links)
    totals = _side_table(request, chosen, "source_site", "source_sites", "true", "All sources")
    about = f"{_ABOUT} The totals of the sources are of all readers, also those without a name."
    return [Section("Which site reads from which", [heat, totals], about)]


def site_sections(request: PageRequest, chosen: Selection, site: str) -> list[Section]:
    """Return what a site reads from which sites, and which sites read from it; nothing
    where no pair is stored.
    """
    sections = []
    for name, other_side, title in (
        ("reads_from", "source_site", "Reads from"),
        ("is_read_by", "reader_site", "Is read by"),
    ):
        condition = f"{_NAMES[1 - _NAMES.index(other_side)]} = ?"
        table = _side_table(request, chosen, other_side, name, condition, f"{title}, by AAA", site)
        if table.rows:
            sections.append(Section(title, [table], _ABOUT, is_half=True))
    return sections


def _side_table(
    request: PageRequest,
    chosen: Selection,
    side: str,
    name: str,
    condition: str,
    caption: str,
    *values: str,
) -> Table:
    """Return the sums of each site on one side of the pairs that meet a condition."""
    rows = _pairs(request, chosen, condition, (side,), *values)
    columns = (
        Column(side, "Site"),
        Column("accesses", "Accesses", "count"),
        Column("read_bytes", "Read", "bytes"),
    )
    cells = [(_UNNAMED if site is None else site, *sums) for site, *sums in rows]
    links = {side: lambda row: "" if row[side] == _UNNAMED else request.site_link(row[side])}
    return Table(name, columns, cells, caption, bars=1, limit=_ROWS, links=links)


def _pairs(
    request: PageRequest, chosen: Selection, condition: str, keys: tuple[str, ...], *values: str
) -> list[tuple[Any, ...]]:
    """Return (keys …, accesses, bytes), the most accesses first."""
    if not request.database.days("site_pairs"):
        return []
    where, parameters = chosen.where(("stream", "data_tier"))
    return request.database.query(
        f"SELECT {', '.join(keys)}, sum(accesses) AS accesses, sum(read_bytes) AS read_bytes FROM site_pairs "
        f"WHERE {where} AND {condition} GROUP BY ALL ORDER BY accesses DESC, {', '.join(keys)}",
        [*parameters, *values],
    ).rows
