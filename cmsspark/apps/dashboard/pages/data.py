"""Data at sites: how much lies at the sites of a tier, on disk and tape; site × data
tier as a heat map.
"""

from __future__ import annotations

import shlex
from collections import Counter
from datetime import date
from functools import partial
from typing import Any, Final

from cmsspark.apps.dashboard import site_use
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.rollup_query import sums
from cmsspark.apps.dashboard.segment import part_sql
from cmsspark.apps.dashboard.selection import (
    FILTERS,
    NO_PART,
    Selection,
    day_parameter,
    filter_values,
)
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import KINDS
from cmsspark.base.text.terminal import pluralize
from cmsspark.pages.charts import rank_names
from cmsspark.store.stored_columns import REPLICA_TABLES

_COLUMNS: Final = (
    ui.Column("site_tier", "Site tier"),
    ui.Column("kind", "Storage"),
    ui.Column("data_tier", "Data tier"),
    ui.Column(
        "replica_bytes",
        "Bytes there",
        "bytes",
        "over all sites: a dataset at three sites counts three times",
    ),
    ui.Column("replica_file_count", "Files", "count"),
    ui.Column("replica_events", "Events there", "count", "an estimate where replicas are partial"),
    ui.Column(
        "events", "Events of the datasets", "count", "each dataset once and whole, as DBS has it"
    ),
    ui.Column("dataset_count", "Datasets", "count"),
    ui.Column("site_count", "Sites", "count"),
)
_MAP_ROWS, _MAP_COLUMNS = 40, 12
#: The sums of what nobody used.
_UNUSED: Final = (None, None, None, None)
#: Weeks of use beside the replicas, where the address names none.
_WEEKS: Final = 12
#: Grouping of the use → its expression on tables of replicas.
_KEYS: Final = {
    "data_tier": "data_tier",
    "campaign": part_sql("campaign"),
}
_WORTH: Final = (
    ui.Column("replica_count", "Replicas", "count"),
    ui.Column("replica_bytes", "Bytes there", "bytes"),
    ui.Column("nacc", "Accesses", "count"),
    ui.Column("accesses_per_replica", "for each replica", "count"),
    ui.Column("read_bytes", "Read", "bytes", "by accesses"),
    ui.Column("read_per_byte", "for each byte there", "count"),
    ui.Column("bytes_per_access", "for each access", "bytes"),
    ui.Column("job_count", "Jobs", "count"),
    ui.Column("cpu_ms_per_job", "CPU hours for each", "ms"),
)


def view(request: PageRequest) -> ui.Content:
    """Return the page for a day, a tier of sites and a kind of storage.

    Raises InputMissing (66) for a day without data.
    """
    days = {table: request.database.days(table) for table in ("site_tier_usage", *REPLICA_TABLES)}
    every = sorted({day for stored in days.values() for day in stored})
    day = day_parameter(request.parameters, "day", every[-1])
    if day not in every:
        raise InputMissing(
            f"no replicas are stored for {day}",
            found=f"{every[0]} to {every[-1]}, {pluralize(len(every), 'day')}",
        )
    page = Page(request)
    stored = [(entry.isoformat(), entry.isoformat()) for entry in reversed(every)]
    page.controls.append(ui.Control("day", "Day", day.isoformat(), stored))
    tiers = filter_values(request.parameters, "site_tier")
    choices = dict.fromkeys([*tiers, *_tiers(request, days)])
    page.many(
        "site_tier",
        "Site tier",
        {entry or NO_PART: ui.shown(entry) for entry in choices},
        [entry or NO_PART for entry in tiers],
    )
    kind = page.choose("kind", "Storage", ["all", *KINDS])
    weeks = page.number("weeks", "Use of weeks", _WEEKS, 520)
    by = page.choose("by", "Use by", {name: FILTERS[name] for name in _KEYS})
    usage = _usage(request, day, kind, tiers) if day in days["site_tier_usage"] else None
    if usage is None:
        text = f"Not stored for this day: run_spark site_tier_usage --date {day}"
        page.section("By tier", ui.Note(text, "warn"))
    else:
        table = ui.Table("data_by_tier", _COLUMNS, usage, "Data at the sites of each tier", bars=3)
        tier = shlex.quote(tiers[0] if tiers else "*")
        page.section(
            "By site tier, storage and data tier",
            _figures(usage),
            table,
            command=f"cmsspark ask holdings --tier {tier} --date {day}",
        )
    of_day = next((table for table in REPLICA_TABLES if day in days[table]), None)
    page.sections.append(_map(request, day, kind, tiers, of_day))
    if of_day is not None:
        make = partial(_worth, request, day, (kind, tiers, of_day), by, weeks)
        about = (
            "Accesses and jobs are those at all storage of these sites. The most accesses first."
        )
        worth = page.optional("The use of what lies there", make)
        page.section("What replicas are worth", worth, about=about)
    about = f"Replicas as of {day}: volume by site tier, storage and data tier."
    return page.content("Data at sites", about)


def _usage(request: PageRequest, day: date, kind: str, tiers: list[str]) -> list[tuple[Any, ...]]:
    names = ", ".join(column.name for column in _COLUMNS)
    return request.database.query(
        f"SELECT {names} FROM site_tier_usage WHERE day = $day AND ($kind = 'all' OR kind = $kind) "
        "AND (len($tiers) = 0 OR site_tier IN $tiers) ORDER BY replica_bytes DESC, site_tier, kind, data_tier",
        {"day": day, "kind": kind, "tiers": tiers},
    ).rows


def _figures(rows: list[tuple[Any, ...]]) -> ui.Figures:
    sums = {kind: sum(row[3] for row in rows if row[1] == kind) for kind in KINDS}
    figures = [
        ui.Figure(f"On {kind}", ui.si(size, "B"), f"{size:,} B")
        for kind, size in sums.items()
        if size
    ]
    files = sum(row[4] for row in rows)
    events = sum(row[5] or 0 for row in rows)
    return ui.Figures(
        [
            *figures,
            ui.Figure("Files", ui.si(files), f"{files:,}"),
            ui.Figure("Events there", ui.si(events), f"{events:,}"),
        ]
    )


def _map(
    request: PageRequest, day: date, kind: str, tiers: list[str], table: str | None
) -> ui.Section:
    title = "Site × data tier"
    if table is None:
        return ui.Section(
            title, [ui.Note(f"Not stored for this day: run_spark dbs_phedex --date {day}", "warn")]
        )
    result = request.database.query(
        f"SELECT site_name, data_tier, sum(present_bytes) AS bytes FROM {table} WHERE day = $day "
        "AND ($kind = 'all' OR kind = $kind) AND (len($tiers) = 0 OR site_tier IN $tiers) GROUP BY ALL HAVING bytes > 0",
        {"day": day, "kind": kind, "tiers": tiers},
    )
    sizes: Counter[tuple[str, str]] = Counter()
    for site, name, size in result.rows:
        sizes[ui.shown(site), ui.shown(name)] += int(size)
    rows = rank_names(sizes, 0)
    columns = rank_names(sizes, 1)
    sites, data_tiers = rows[:_MAP_ROWS], columns[:_MAP_COLUMNS]
    cells = {
        key: value for key, value in sizes.items() if key[0] in sites and key[1] in data_tiers
    }
    links = {ui.shown(site): request.link("sites", site=site) for site, _, _ in result.rows}
    part = len(rows) > _MAP_ROWS or len(columns) > _MAP_COLUMNS
    about = (
        f"The {len(sites)} of {len(rows)} sites and the {len(data_tiers)} of {len(columns)} data tiers with the most bytes; "
        "the download has all."
    )
    caption = f"Bytes of replicas ({kind} storage)"
    heat = ui.HeatMap(
        "site_by_data_tier",
        caption,
        sites,
        data_tiers,
        cells,
        result.table,
        "bytes",
        links,
    )
    if not cells:
        return ui.Section(title, [ui.Note("No replica has any bytes in this choice.")])
    return ui.Section(title, [heat], about if part else "")


def _worth(
    request: PageRequest, day: date, replicas: tuple[str, list[str], str], by: str, weeks: int
) -> ui.Table | None:
    """Return what each replica is worth: reads for each, and what a read costs, by data
    tier or campaign; None where no day of accesses is stored.
    """
    kind, tiers, table = replicas
    snapshot = request.snapshot
    if not snapshot.days:
        return None
    first, last = site_use.window(snapshot, weeks)
    chosen = Selection(first, last, tuple(("site_tier", tier) for tier in tiers))
    measures = ("nacc", "read_bytes", "job_count", "cpu_ms")
    (used,) = sums(snapshot, chosen, (by,), columns=measures)
    sums_of = {name: values for name, *values in used}
    rows = request.database.query(
        f"SELECT coalesce({_KEYS[by]}, '') AS key, count(*), sum(present_bytes) FROM {table} "
        "WHERE day = $day AND present_bytes > 0 AND ($kind = 'all' OR kind = $kind) "
        "AND (len($tiers) = 0 OR site_tier IN $tiers) GROUP BY 1",
        {"day": day, "kind": kind, "tiers": tiers},
    ).rows
    replica_sums = {name: (count, int(size)) for name, count, size in rows}
    names = sorted(
        {*replica_sums, *sums_of},
        key=lambda name: (
            -(sums_of.get(name, _UNUSED)[0] or 0),
            -replica_sums.get(name, (0, 0))[1],
            name,
        ),
    )
    rows = []
    for name in names:
        count, size = replica_sums.get(name, (0, 0))
        accesses, read, jobs, cpu = sums_of.get(name, _UNUSED)
        ratios = (ui.ratio(accesses, count), read, ui.ratio(read, size), ui.ratio(read, accesses))
        rows.append((name, count, size, accesses, *ratios, jobs, ui.ratio(cpu, jobs)))
    columns = (ui.Column(by, FILTERS[by]), *_WORTH)
    caption = f"Replicas of {day} beside the use from {first} to {last}"
    return ui.Table("worth", columns, rows, caption, bars=4, limit=_MAP_ROWS)


def _tiers(request: PageRequest, days: dict[str, list[date]]) -> list[str]:
    table = next(table for table, stored in days.items() if stored)
    sql = f"SELECT DISTINCT site_tier FROM {table} WHERE day = ? AND site_tier IS NOT NULL ORDER BY 1"
    return request.values(sql, [days[table][-1]])


PAGE = PageDefinition(
    "Data at sites",
    "How much data the sites hold, on disk and tape.",
    view,
    needs_use=False,
    needs=("site_tier_usage", *REPLICA_TABLES),
    empty="No day of replicas is stored. Run: run_spark site_tier_usage --date DAY;"
    " run_spark dbs_phedex --date DAY",
)
