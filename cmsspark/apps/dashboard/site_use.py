"""The use of sites: what is read at each, what is local and remote, and what lies there unused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

from cmsspark.apps.dashboard.dataset_ranking import (
    SITE_TIER_SQL,
    are_chosen,
    datasets,
)
from cmsspark.apps.dashboard.downloads import rows_to_arrow
from cmsspark.apps.dashboard.page_request import PageRequest
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.use import integer
from cmsspark.apps.dashboard.widgets import (
    Cell,
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

_SUMS: Final = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
#: Groups of a site's accesses: the column of ``site_days``.
GROUPS: Final = ("data_tier", "app")
#: The most accesses first, then the most jobs.
_LARGEST: Final = "ORDER BY nacc DESC NULLS LAST, job_count DESC NULLS LAST, 1"


def sum_sites(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """(site, sums as in ``SUMS`` …) of all sites, those with the most accesses first."""
    chosen.check(FILTERS)
    return snapshot.cached(("sum_sites", chosen), lambda: _sum_sites(snapshot, chosen))


def _sum_sites(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    if chosen.values("campaign"):
        numbers = snapshot.datasets.numbers[np.flatnonzero(are_chosen(snapshot, chosen))]
        period = chosen.only("stream", "site_tier")
        rows = _query_pairs(snapshot, period, "site_name", numbers.tolist())
    else:
        columns = {"stream": "stream", "site_tier": SITE_TIER_SQL}
        table = "site_totals"
        if chosen.values("data_tier"):
            columns["data_tier"], table = "data_tier", "site_days"
        where, parameters = chosen.where(columns)
        source = snapshot.rows(table, chosen.first, chosen.last)
        rows = snapshot.query(
            f"SELECT site_name::VARCHAR, {_SUMS} FROM {source} WHERE {where} GROUP BY 1 {_LARGEST}",
            parameters,
        )
    return [(row[0], *map(integer, row[1:])) for row in rows]


def all_sites(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """(site, sums as in ``SUMS`` …, distinct users) of all sites, those with the most
    accesses first.
    """
    users = count_users(snapshot, chosen)
    return [(*row, users.get(row[0], 0)) for row in sum_sites(snapshot, chosen)]


def over_time(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """(first day of the step, sums …) of the selection's site."""
    where, parameters = chosen.where(("stream", "site_name"))
    return snapshot.query(
        f"SELECT date_trunc('{chosen.step}', day)::DATE AS d, {_SUMS} FROM site_totals "
        f"WHERE {where} GROUP BY 1 ORDER BY 1",
        parameters,
    )


def by_group(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """(value of the grouping, one of ``GROUPS``, sums …) of the selection's site, the
    most accesses first.
    """
    chosen.check(("stream", "site_name"), groups=GROUPS)
    of_site = chosen.only("stream", "site_name")

    def make() -> list[tuple[Any, ...]]:
        source = snapshot.rows("site_days", chosen.first, chosen.last)
        where, parameters = of_site.where(("stream", "site_name"))
        # The rows are read once for all groups, which are made of few sums: each segment
        # costs more with several groups.
        names = ", ".join(GROUPS)
        sets = ", ".join(f"({name})" for name in GROUPS)
        marks = ", ".join(f"grouping({name})" for name in GROUPS)
        return snapshot.query(
            f"SELECT {marks}, coalesce({names}), {_SUMS} FROM (SELECT {names}, {_SUMS} "
            f"FROM {source} WHERE {where} GROUP BY {names}) GROUP BY GROUPING SETS ({sets}) "
            f"ORDER BY nacc DESC NULLS LAST, job_count DESC NULLS LAST, {len(GROUPS) + 1}",
            parameters,
        )

    at = GROUPS.index(chosen.by)
    rows = snapshot.cached(("site_by", of_site), make)
    return [row[len(GROUPS) :] for row in rows if row[at] == 0]


def last_days(snapshot: Snapshot, site: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read each dataset at a site."""

    def make() -> dict[str, date]:
        rows = snapshot.query(
            f"SELECT dataset, max(last_day) FROM {snapshot.rows('site_datasets')} "
            "WHERE site_name = ? AND last_day IS NOT NULL GROUP BY 1",
            [site],
        )
        datasets = snapshot.datasets
        return {datasets.names[datasets.codes[number]]: day for number, day in rows}

    return snapshot.cached(("last_days", site), make)


def top_datasets(snapshot: Snapshot, chosen: Selection) -> list[tuple[Any, ...]]:
    """(dataset, sums …) of the selection's site, the most accesses first."""
    chosen.check(("stream", "site_name"))

    def make() -> list[tuple[Any, ...]]:
        datasets = snapshot.datasets
        return [
            (datasets.names[datasets.codes[number]], *sums)
            for number, *sums in _query_pairs(snapshot, chosen, "dataset")
        ]

    return snapshot.cached(("site_datasets", chosen), make)


def _query_pairs(
    snapshot: Snapshot, chosen: Selection, key: str, numbers: Sequence[int] | None = None
) -> list[tuple[Any, ...]]:
    """Return (number of a dataset or site, sums …) of pairs of both, the most accesses
    first: whole segments by pair, cut ones day by day. ``numbers``: only these datasets.
    """
    columns = {"stream": "stream", "site_name": "site_name", "site_tier": SITE_TIER_SQL}
    inside, cut = snapshot.split(chosen.first, chosen.last)
    parts: list[str] = []
    values: list[Any] = []
    for table, segments in (("site_datasets", inside), ("detail", cut)):
        if segments:
            where, parameters = chosen.where(columns, days_too=table == "detail")
            if numbers is not None:
                where += " AND dataset IN (SELECT unnest(?::INTEGER[]))"
                parameters.append(numbers)
            source = snapshot.rows(table, segments=segments)
            parts.append(f"SELECT {key}, {', '.join(SUMS)} FROM {source} WHERE {where}")
            values += parameters
    if not parts:
        return []
    return snapshot.query(
        f"SELECT {key}, {_SUMS} FROM ({' UNION ALL '.join(parts)}) GROUP BY 1 {_LARGEST}", values
    )


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
    rankings = (
        datasets(snapshot, Selection(first, last, measure=name)) for name in ("nacc", "job_count")
    )
    accesses, jobs = (
        dict(zip(ranking.names(), ranking.counts, strict=True)) for ranking in rankings
    )
    return {name: (accesses.get(name) or 0, jobs.get(name) or 0) for name in accesses | jobs}


def count_users(snapshot: Snapshot, chosen: Selection) -> dict[str, int | None]:
    """Return the distinct users of each site over the period; None where its days have
    two pseudonym keys.
    """
    chosen.check(("stream",))

    def make() -> dict[str, int | None]:
        names = snapshot.names["site_name"]
        if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
            return dict.fromkeys(names)
        where, parameters = chosen.where_users(())
        rows = snapshot.query(
            "SELECT site_name, bit_count(bit_or(users)) "
            f"FROM {snapshot.rows('site_users', chosen.first, chosen.last)} "
            f"WHERE {where} GROUP BY 1",
            parameters,
        )
        return {**dict.fromkeys(names, 0), **dict(rows)}

    return snapshot.cached(("users_of_sites", chosen), make)


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
    first = dates.days_before(chosen.first, 7 * _WEEKS_BEFORE)
    where, parameters = replace(chosen, first=first).where(list(FILTERS))
    rows = snapshot.query(
        "SELECT day, stream::VARCHAR, coalesce(sum(nacc), sum(job_count)) FROM cube "
        f"WHERE {where} GROUP BY ALL",
        parameters,
    )
    counts = {(day, stream): int(count or 0) for day, stream, count in rows}
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
    columns = {"stream": "stream", "site_tier": SITE_TIER_SQL}
    where, parameters = chosen.where(columns, days_too=False)
    rows = snapshot.query(
        "SELECT day, stream::VARCHAR, site_name::VARCHAR, coalesce(sum(nacc), sum(job_count)) "
        f"FROM site_totals WHERE {where} AND day IN (SELECT unnest(?::DATE[])) GROUP BY ALL",
        [*parameters, needed],
    )
    counts: dict[tuple[date, str], dict[str, int]] = {}
    for day, stream, site, count in rows:
        counts.setdefault((day, stream), {})[site] = int(count or 0)
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


def age_figures(snapshot: Snapshot, database: Database, site: str, kind: str) -> list[Figure]:
    """Return the replicas at a site by weeks without a read there; no age that is
    longer than the stored days.
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
    last_day = snapshot.days[-1]
    recorded = (last_day - snapshot.days[0]).days + 1
    figures = []
    for weeks in (weeks for weeks in AGES if 7 * weeks <= recorded):
        unread = [
            size
            for name, size in replicas
            if name not in last or (last_day - last[name]).days >= 7 * weeks
        ]
        size, datasets = sum(unread), pluralize(len(unread), "dataset")
        figures.append(
            Figure(
                f"Unread for {pluralize(weeks, 'week')}", si(size, "B"), f"{size:,} B", datasets
            )
        )
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
    download = partial(rows_to_arrow, (*_NAMES, "accesses", "read_bytes"), rows)
    caption = "Accesses by site of the reader (rows) and of the source (columns), the most used"
    heat = HeatMap("site_pairs", caption, readers, sources, values, "count", download, links)
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
    cells = [
        (
            "not named in the log" if site is None else Cell(shown(site), request.site_link(site)),
            *sums,
        )
        for site, *sums in rows
    ]
    return Table(name, columns, cells, caption, bars=1, limit=_ROWS)


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
