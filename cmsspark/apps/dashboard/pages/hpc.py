"""HPC: cores that ran at HPC sites by hour, and their core hours by month."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from msgspec.structs import replace

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page, table_chart
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest

#: A series of what is at no HPC site is not shown; a name is the HPC's, or all other
#: sites of the store.
_ALL: Final = "hpc IS NOT NULL"


def view(request: PageRequest) -> ui.Content:
    """Return the page of a day's cores, and of all stored months."""
    days, page = request.database.days("running_cores"), Page(request)
    day = page.day("day", "Day of the cores", days[-1], (days[0], days[-1]))
    # Where jobs only run there are no core hours yet.
    hpcs = [f"SELECT hpc FROM {table} WHERE {_ALL}" for table in ("core_hours", "running_cores")]
    names = request.values(f"{hpcs[0]} UNION {hpcs[1]} ORDER BY 1")
    hpc = page.choose("hpc", "HPC", names, every="all")
    where, values = (f"{_ALL} AND hpc = ?", [hpc]) if hpc else (_ALL, [])
    windows = dict(
        request.database.query(
            "SELECT hour, max(window_count) FROM running_cores WHERE day = ? GROUP BY 1", [day]
        ).rows
    )
    silent = [hour for hour in range(24) if windows.get(hour, 0) < 5] if day in days else []
    if day not in days:
        page.note(f"{day} is not stored.", "warn")
    if silent:
        hours = ", ".join(f"{hour:02}" for hour in silent)
        text = f"HTCondor's collector was silent in these hours or a part of them, whose averages are too low: {hours}."
        page.note(text, "warn")
    page.section("In total", _figures(request, day, days, where, values))
    page.section(f"Cores by hour on {day}", _cores(request, day, where, values, windows))
    page.section("Core hours by month", _months(request, where, values))
    return page.content("HPC", "Jobs of HTCondor at HPC sites.")


def _figures(
    request: PageRequest, day: date, days: list[date], where: str, values: list[Any]
) -> ui.Figures:
    """Return the mean cores of the day, the core hours of its month and of all days,
    and the largest HPC.
    """
    stored = sum(f"{entry:%Y-%m}" == f"{day:%Y-%m}" for entry in days)
    stored_text = f"{stored} of {monthrange(day.year, day.month)[1]} days stored"
    ((cores,),) = request.database.query(
        f"SELECT sum(core_windows_milli) / 120000 FROM running_cores WHERE {where} AND day = ?",
        [*values, day],
    ).rows
    by_hpc = request.database.query(
        "SELECT hpc, sum(core_ms) / 3600000 AS hours, sum(core_ms) FILTER (strftime(day, '%Y-%m') = ?) / 3600000"
        f" FROM core_hours WHERE {where} GROUP BY 1 ORDER BY hours DESC, hpc",
        [f"{day:%Y-%m}", *values],
    ).rows
    in_all, in_month = sum(row[1] or 0 for row in by_hpc), sum(row[2] or 0 for row in by_hpc)
    figures = [
        ui.Figure(
            "Cores",
            ui.si(float(cores or 0)) if day in days else "–",
            f"on {day}, mean of 24 hours",
        ),
        ui.Figure(
            f"Core hours in {day:%Y-%m}", ui.si(float(in_month)), f"{in_month:,.1f}", stored_text
        ),
        ui.Figure(
            "Core hours of all days",
            ui.si(float(in_all)),
            f"{in_all:,.1f}",
            f"{days[0]} to {days[-1]}",
        ),
    ]
    if by_hpc and in_all:
        name, hours, _ = by_hpc[0]
        figures.append(
            ui.Figure("Largest HPC", ui.shown(name), f"{hours / in_all:.0%} of all core hours")
        )
    return ui.Figures(figures)


def _cores(
    request: PageRequest, day: Any, where: str, values: list[Any], windows: Mapping[int, int]
) -> ui.Chart:
    query = (
        "SELECT hpc, hour, sum(core_windows_milli) / 5000 AS cores,"
        " sum(core_windows_milli) / 1000 / max(window_count) AS cores_of_windows, max(window_count) AS window_count"
        f" FROM running_cores WHERE {where} AND day = ? GROUP BY ALL ORDER BY ALL"
    )
    about = "of the windows with any record"
    columns = (
        ui.Column("hpc", "HPC"),
        ui.Column("hour", "Hour (UTC)", "count"),
        ui.Column("cores", "Cores", "count", "of the whole hour"),
        ui.Column("cores_of_windows", "Cores where records were written", "count", about),
        ui.Column(
            "window_count", "Windows of 5", "count", "of 12 minutes, with a record of any job"
        ),
    )
    caption = f"Cores by HPC and hour on {day}"
    table = request.table("hpc_cores", columns, query, [*values, day], caption)
    chart = table_chart(table, "hour", "hpc", "cores", steps=range(24))
    # In an hour with records of other jobs an HPC without a row ran none.
    series = {
        name: [
            0 if value is None and windows.get(hour) else value for hour, value in enumerate(cores)
        ]
        for name, cores in chart.series.items()
    }
    return replace(chart, series=series)


def _months(request: PageRequest, where: str, values: list[Any]) -> ui.Chart:
    query = (
        "SELECT strftime(day, '%Y-%m') AS month, hpc, site, sum(core_ms) / 3600000 AS core_hours,"
        " sum(job_count) AS jobs, (SELECT count(DISTINCT stored.day) FROM core_hours stored"
        " WHERE strftime(stored.day, '%Y-%m') = month) AS day_count"
        f" FROM core_hours WHERE {where} GROUP BY month, hpc, site ORDER BY ALL"
    )
    columns = (
        ui.Column("month", "Month"),
        ui.Column("hpc", "HPC"),
        ui.Column("site", "Site"),
        ui.Column("core_hours", "Core hours", "count", "of jobs that were completed"),
        ui.Column("jobs", "Jobs", "count", "that ended, also removed ones"),
        ui.Column("day_count", "Days stored", "count", "of the month"),
    )
    caption = "Core hours by month, HPC and site"
    table = request.table("hpc_months", columns, query, values, caption)
    return table_chart(table, "month", "hpc", "core_hours")


PAGE = PageDefinition(
    "HPC",
    "Cores and core hours at HPC sites.",
    view,
    needs_use=False,
    needs=("running_cores",),
    empty="No day of running cores is stored. Run: run_spark job_efficiency --date DAY",
)
