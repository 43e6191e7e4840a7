"""Efficiency: what HTCondor's jobs cost, workflows by wasted core hours, and the sites
of a workflow.
"""

from __future__ import annotations

import shlex
from datetime import date
from typing import Any, Final

from cmsspark.apps.ask import costs
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page, table_chart
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import day_parameter, text_parameter
from cmsspark.base import dates, efficiency
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import between
from cmsspark.base.text.terminal import is_or_are, pluralize

#: Days without a period in the address, and at most.
_DAYS, _MOST = 30, 400
#: Rows that a page shows of a table.
_SHOWN: Final = 20
#: What jobs are ranked by, and its heading.
_KEYS: Final = {"workflow": "Workflow", "site": "Site"}
#: Conditions: the parameter and column, and the label.
_CONDITIONS: Final = {"type": "Type", "tier": "Tier", "site": "Site"}
_COLUMNS: Final = (
    ui.Column(
        "wasted",
        "Wasted",
        "count",
        "core hours that no CPU used, and all of failed and removed jobs",
    ),
    ui.Column(
        "efficiency",
        "CPU efficiency",
        "share",
        f"CPU time of the core time of the last start, {efficiency.POPULATION}",
    ),
    ui.Column(
        "core_hours", "Core hours", "count", "requested cores × wall-clock hours of all starts"
    ),
    ui.Column(
        "lost", "Failed, removed", "count", "core hours of jobs that failed or were removed"
    ),
    ui.Column("jobs", "Jobs", "count"),
    ui.Column(
        "allocated_efficiency",
        "Allocated efficiency",
        "share",
        f"CPU time of the core time of all starts, {efficiency.POPULATION}",
    ),
    ui.Column(
        "evicted", "Evicted", "count", "core hours of starts that were evicted, of all jobs"
    ),
)


def view(request: PageRequest) -> ui.Content:
    """Return the page of a period; with a workflow in the address its sites."""
    days, page = request.database.days("job_efficiency"), Page(request)
    first, last = choose_period(page, days)
    chosen = {
        name: choose_stored(page, name, label, "job_efficiency", first, last)
        for name, label in _CONDITIONS.items()
    }
    text = page.text("q", "Workflow contains")
    workflow = text_parameter(request.parameters, "workflow")
    condition, filters = choose_rows({**chosen, "workflow": workflow}, "workflow", text)
    where, parameters = f"day BETWEEN ? AND ? AND {condition}", [first, last, *filters]
    total = request.database.query(
        f"SELECT {costs.JOBS} FROM job_efficiency WHERE {where}", parameters
    ).rows[0]
    by_day = _by_day(request, first, last, where, parameters)
    page.section("In total", _figures(total), by_day)
    for key in ("site",) if workflow else ("workflow", "site"):
        title = f"{_KEYS[key]}s by wasted core hours"
        site = f" --site {shlex.quote(chosen['site'])}" * bool(chosen["site"] and key != "site")
        command = f"cmsspark ask worst {key}s{site} --from {first} --to {last}"
        if workflow:
            title, command = f"Sites of {ui.shown(workflow)}", ""
        ranking = costs.RANKINGS[f"{key}s"]
        result = costs.rank(request.database, ranking, first, last, condition, filters)
        table = ui.Table(
            f"{key}s",
            (ui.Column(key, _KEYS[key], "dataset" if key == "workflow" else "text"), *_COLUMNS),
            result.table,
            f"{_KEYS[key]}s, the largest waste first",
            limit=_SHOWN,
            bars=1,
            links={
                "workflow": lambda row: request.link_here(workflow=row["workflow"]),
                "site": lambda row: request.site_link(row["site"]),
            },
        )
        page.section(title, table, command=command)
    months = _benchmark(request, condition, filters)
    page.section("CPU in HS23 by month", months, about=_HS23)
    page.section("Outliers", _outliers(request, where, parameters), about=_OUTLIERS)
    note_missing(page, days, first, last)
    earlier = request.values(
        "SELECT count(DISTINCT day) FROM job_efficiency WHERE day BETWEEN ? AND ?"
        " AND last_core_with_cpu_ms IS NULL",
        [first, last],
    )[0]
    if earlier:
        text = (
            f"{pluralize(earlier, 'day')} of these, counted by earlier rules, lack the sums of the efficiencies and of"
            " wasted and evicted core hours, and are not in them. Run: run_spark job_efficiency --date DAY"
        )
        page.note(text, "warn")
    about = f"Jobs of HTCondor that ended, {first} to {last}."
    return page.content("Efficiency", about)


_OUTLIERS: Final = (
    "Jobs with an efficiency of 100 % or more: the wall-clock time of short jobs is logged too"
    " small. They are among the jobs that did not fail."
)


_HS23: Final = (
    "CPU hours times the benchmark of the machine (HS23, before it HS06: one is as much as the"
    " other), of jobs whose machine names one; all stored months."
)


def note_missing(page: Page, days: list[date], first: date, last: date) -> None:
    """Add a note on days of a period that are not stored."""
    missing = (last - first).days + 1 - sum(first <= day <= last for day in days)
    if missing:
        verb = is_or_are(missing)
        page.note(f"{missing:,} of the days from {first} to {last} {verb} not stored.", "warn")


def choose_period(page: Page, days: list[date]) -> tuple[date, date]:
    """Return the period of the address, by default the newest days, and add its fields.
    Raises UsageError (2).
    """
    last = day_parameter(page.parameters, "to", days[-1])
    first = page.day("from", "From", max(days[0], dates.days_before(last, _DAYS - 1)))
    page.day("to", "To (included)", last)
    if not 0 <= (last - first).days < _MOST:
        raise UsageError(
            f"the page shows at most {_MOST} days, in order", found=f"{first} to {last}"
        )
    return first, last


def choose_stored(page: Page, column: str, label: str, table: str, first: date, last: date) -> str:
    """Take a value that a column has in the period, or one that it has on other days."""
    sql = f"SELECT DISTINCT {column} FROM {table} WHERE"
    values = page.request.values(f"{sql} day BETWEEN ? AND ? ORDER BY 1", [first, last])
    value = text_parameter(page.parameters, column)
    if value and value not in values:
        values = [*values, *page.request.values(f"{sql} {column} = ?", [value])]
    return page.choose(column, label, values, every="all")


def choose_rows(chosen: dict[str, str], column: str, text: str) -> tuple[str, list[Any]]:
    """Return the SQL condition, with its values, of rows with the chosen values, an empty
    one of which is any, and all words of ``text`` in a column.
    """
    conditions, values = ["true"], list[Any]()
    for name, value in chosen.items():
        if value:
            conditions.append(f"{name} = ?")
            values.append(value)
    for word in text.split():
        conditions.append(f"contains(lower({column}), lower(?))")
        values.append(word)
    return " AND ".join(conditions), values


def _figures(total: tuple[Any, ...]) -> ui.Figures:
    wasted, cpu_efficiency, core_hours, lost, jobs, _, evicted = total
    return ui.Figures(
        [
            ui.Figure("Jobs", f"{jobs or 0:,}"),
            ui.Figure("Core hours", f"{core_hours or 0:,.0f}"),
            ui.Figure("Wasted", f"{wasted or 0:,.0f}", "core hours"),
            ui.Figure("Of failed and removed jobs", f"{lost or 0:,.0f}", "core hours"),
            ui.Figure(
                "Evicted", "–" if evicted is None else f"{evicted:,.0f}", "core hours of all jobs"
            ),
            ui.Figure(
                "CPU efficiency",
                "–" if cpu_efficiency is None else f"{cpu_efficiency:.1%}",
                f"of the last start, {efficiency.POPULATION}",
            ),
        ]
    )


def _by_day(
    request: PageRequest, first: date, last: date, where: str, parameters: list[Any]
) -> ui.Chart:
    query = (
        "SELECT day, outcome, sum(core_ms) / 3600000 AS core_hours FROM job_efficiency"
        f" WHERE {where} GROUP BY ALL ORDER BY ALL"
    )
    columns = (
        ui.Column("day", "Day", "day"),
        ui.Column("outcome", "Outcome"),
        ui.Column("core_hours", "Core hours", "count"),
    )
    caption = "Core hours by day and outcome"
    table = request.table("outcomes", columns, query, parameters, caption)
    # Days without a job have a place, too.
    days = between(first, last).days
    order = ("ok", "outlier", "failed", "removed")
    return table_chart(table, "day", "outcome", "core_hours", steps=days, order=order)


def _benchmark(request: PageRequest, condition: str, values: list[Any]) -> ui.Chart:
    """Return the CPU hours of each month by tier, in units of the machines' benchmark."""
    query = (
        "SELECT strftime(day, '%Y-%m') AS month, tier, sum(hs06_cpu_ms) / 3600000 AS hs23_hours,"
        " sum(hs06_job_count) AS jobs, sum(job_count) AS all_jobs FROM job_efficiency"
        f" WHERE {condition} GROUP BY ALL ORDER BY ALL"
    )
    columns = (
        ui.Column("month", "Month"),
        ui.Column("tier", "Tier"),
        ui.Column("hs23_hours", "HS23 hours", "count"),
        ui.Column("jobs", "Jobs", "count", "whose machine names a benchmark"),
        ui.Column("all_jobs", "Of jobs", "count"),
    )
    table = request.table("hs23", columns, query, values, "CPU in HS23 by month and tier")
    return table_chart(table, "month", "tier", "hs23_hours")


def _outliers(request: PageRequest, where: str, parameters: list[Any]) -> ui.Table:
    query = (
        "SELECT workflow, site, sum(job_count) AS jobs, sum(core_ms) / 3600000 AS core_hours,"
        f" {efficiency.ratio_sql(efficiency.CPU)} AS efficiency FROM job_efficiency WHERE {where}"
        " AND outcome = 'outlier' GROUP BY ALL ORDER BY jobs DESC, 1, 2"
    )
    columns = (
        ui.Column("workflow", "Workflow", "dataset"),
        ui.Column("site", "Site"),
        ui.Column("jobs", "Jobs", "count"),
        ui.Column("core_hours", "Core hours", "count"),
        ui.Column("efficiency", "CPU efficiency", "share"),
    )
    caption = "Outliers, most jobs first"
    return request.table("outliers", columns, query, parameters, caption, limit=_SHOWN)


PAGE = PageDefinition(
    "Efficiency",
    "What jobs cost and wasted.",
    view,
    needs_use=False,
    needs=("job_efficiency",),
    empty="No day of HTCondor's jobs is stored. Run: run_spark job_efficiency --date DAY",
)
