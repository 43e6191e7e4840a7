"""Steps: what the cmsRun steps of production jobs cost, by request and site, and the
agents that sent WMArchive's reports.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from msgspec.structs import replace

from cmsspark.apps.ask import costs
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page, pivoted
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.pages.efficiency import (
    choose_period,
    choose_rows,
    choose_stored,
    note_missing,
)
from cmsspark.apps.dashboard.selection import text_parameter
from cmsspark.base.periods import between

_SHOWN: Final = 20
_COLUMNS: Final = (
    ui.Column("idle", "Idle", "count", "thread hours that no CPU used"),
    ui.Column(
        "efficiency",
        "CPU efficiency",
        "share",
        "CPU time of the thread hours, of steps that report both",
    ),
    ui.Column("thread_hours", "Thread hours", "count", "threads × hours of the steps"),
    ui.Column("steps", "Steps", "count"),
    ui.Column("failed_steps", "Failed", "count", "steps whose status is not 0"),
    ui.Column("events", "Events", "count"),
    ui.Column("peak_bytes", "Peak memory", "bytes", "the largest resident memory of a step"),
    ui.Column("read_bytes", "Read", "bytes"),
    ui.Column("write_bytes", "Written", "bytes"),
)
_AGENTS: Final = (
    ui.Column("host", "Agent"),
    ui.Column("failed", "Failed", "count", "reports of jobs that did not succeed"),
    ui.Column("failed_share", "Share", "share", "of its reports"),
    ui.Column("reports", "Reports", "count", "of every state; each job once a day"),
    ui.Column("steps", "Steps", "count"),
    ui.Column("site_count", "Sites", "count", "the most of a day"),
)
#: What steps are ranked by: the column of the table and the name of the download → its heading.
_KEYS: Final = {"request": "Request", "site": "Site", "task": "Task", "step": "Step"}


def view(request: PageRequest) -> ui.Content:
    """Return the page of a period; with a request in the address its tasks and steps."""
    days, page = request.database.days("step_efficiency"), Page(request)
    first, last = choose_period(page, days)
    site = choose_stored(page, "site", "Site", "step_efficiency", first, last)
    text = page.text("q", "Request contains")
    name = text_parameter(request.parameters, "request")
    chosen = (first, last, *choose_rows({"site": site, "request": name}, "request", text))
    typed = f"--from {first} --to {last}"
    page.section("In total", _by_day(request, *chosen))
    for key in ("task", "step", "site") if name else ("request", "site"):
        title = f"{_KEYS[key]}s of {ui.shown(name)}" if name else f"{_KEYS[key]}s by idle hours"
        command = f"cmsspark ask worst requests {typed}" if key == "request" else ""
        page.section(title, _ranking(request, key, *chosen), command=command)
    if not name:
        agents = costs.rank(request.database, costs.RANKINGS["agents"], first, last)
        table = ui.Table("agents", _AGENTS, agents.table, "The most failed jobs first")
        command = f"cmsspark ask worst agents {typed}"
        page.section("Agents", table, about="Of every site and request.", command=command)
    note_missing(page, days, first, last)
    about = f"cmsRun steps of production jobs that succeeded, by WMArchive, {first} to {last}."
    return page.content("Steps", about)


def _by_day(
    request: PageRequest, first: date, last: date, condition: str, values: list[Any]
) -> ui.Chart:
    result = request.database.query(
        "SELECT day, sum(cpu_of_thread_ms) / 3600000 AS cpu_hours,"
        " (sum(thread_ms) - sum(cpu_of_thread_ms)) / 3600000 AS idle_hours FROM step_efficiency"
        f" WHERE day BETWEEN ? AND ? AND {condition} GROUP BY 1 ORDER BY 1",
        [first, last, *values],
    )
    days = between(first, last).days
    # Days without a step have a place, too.
    cpu, idle = (
        pivoted(((row[0], name, row[n]) for row in result.rows), days).get(
            name, [None] * len(days)
        )
        for n, name in enumerate(("CPU", "idle"), 1)
    )
    columns = (
        ui.Column("day", "Day", "day"),
        ui.Column("cpu_hours", "CPU hours", "count"),
        ui.Column("idle_hours", "Idle thread hours", "count"),
    )
    caption, labels = "Thread hours by day", [day.isoformat() for day in days]
    return ui.Chart(
        "thread_hours",
        caption,
        "columns",
        labels,
        {"CPU": cpu, "idle": idle},
        y_title="Thread hours",
        table=ui.Table("thread_hours", columns, result.table, caption),
    )


def _ranking(
    request: PageRequest, key: str, first: date, last: date, condition: str, values: list[Any]
) -> ui.Table:
    ranking = replace(costs.RANKINGS["requests"], key=key)
    result = costs.rank(request.database, ranking, first, last, condition, values)
    heading = ui.Column(key, _KEYS[key], "dataset" if key in ("request", "task") else "text")
    return ui.Table(
        f"{key}s",
        (heading, *_COLUMNS),
        result.table,
        f"{_KEYS[key]}s, the most idle thread hours first",
        limit=_SHOWN,
        bars=1,
        links={"request": lambda row: request.link_here(request=row["request"])},
    )


PAGE = PageDefinition(
    "Steps",
    "What steps of production jobs cost.",
    view,
    needs_use=False,
    needs=("step_efficiency",),
    empty="No day of steps is stored. Run: run_spark step_efficiency --date DAY",
)
