"""Steps: what the cmsRun steps of production jobs cost, by request and site, and the
agents that sent WMArchive's reports.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any, Final

from cmsspark.apps.ask import costs
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.pages.efficiency import choose_period, choose_rows, missing_days
from cmsspark.apps.dashboard.selection import choice_parameter, text_parameter
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
    days = request.database.days("step_efficiency")
    if not days:
        note = ui.Note("No day of steps is stored. Run: run_spark step_efficiency --date DAY")
        return ui.Content("Steps", [], notes=[note])
    first, last = choose_period(request, days)
    sql = "SELECT DISTINCT site FROM step_efficiency WHERE day BETWEEN ? AND ? ORDER BY 1"
    sites = request.values(sql, [first, last])
    site = choice_parameter(request.parameters, "site", ["", *sites], "")
    text = text_parameter(request.parameters, "q")
    name = text_parameter(request.parameters, "request")
    chosen = (first, last, *choose_rows({"site": site, "request": name}, "request", text))
    typed = f"--from {first} --to {last}"
    sections = [ui.Section("In total", [_by_day(request, *chosen)])]
    for key in ("task", "step", "site") if name else ("request", "site"):
        title = f"{_KEYS[key]}s of {ui.shown(name)}" if name else f"{_KEYS[key]}s by idle hours"
        command = f"cmsspark ask worst requests {typed}" if key == "request" else ""
        sections.append(ui.Section(title, [_ranking(request, key, *chosen)], command=command))
    if not name:
        agents = costs.rank(request.database, costs.RANKINGS["agents"], first, last)
        table = ui.Table(
            "agents", _AGENTS, agents.rows, "The most failed jobs first", lambda: agents.table
        )
        about = "Of every site and request."
        command = f"cmsspark ask worst agents {typed}"
        sections.append(ui.Section("Agents", [table], about, command=command))
    controls = [
        ui.Control("from", "From", first.isoformat(), kind="date"),
        ui.Control("to", "To (included)", last.isoformat(), kind="date"),
        ui.Control(
            "site", "Site", site, [("", "all"), *((entry, ui.shown(entry)) for entry in sites)]
        ),
        ui.Control("q", "Request contains", text, kind="text"),
    ]
    about = f"cmsRun steps of production jobs that succeeded, by WMArchive, {first} to {last}."
    return ui.Content("Steps", sections, about, controls, missing_days(days, first, last))


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
    hours = {row[0]: row[1:] for row in result.rows}
    series = {
        name: [
            None if (value := hours.get(day, (None, None))[number]) is None else round(value, 1)
            for day in days
        ]
        for number, name in enumerate(("CPU", "idle"))
    }
    columns = (
        ui.Column("day", "Day", "day"),
        ui.Column("cpu_hours", "CPU hours", "count"),
        ui.Column("idle_hours", "Idle thread hours", "count"),
    )
    rows = [
        (row[0], *(None if value is None else round(value) for value in row[1:]))
        for row in result.rows
    ]
    caption = "Thread hours by day"
    table = ui.Table("thread_hours", columns, rows, caption, lambda: result.table)
    labels = [day.isoformat() for day in days]
    return ui.Chart(
        "thread_hours", caption, "columns", labels, series, y_title="Thread hours", table=table
    )


def _ranking(
    request: PageRequest, key: str, first: date, last: date, condition: str, values: list[Any]
) -> ui.Table:
    ranking = replace(costs.RANKINGS["requests"], key=key)
    result = costs.rank(request.database, ranking, first, last, condition, values)
    rows = [
        (
            ui.Cell(row[0], request.link_here(request=row[0])) if key == "request" else row[0],
            *(
                round(value) if name in ("idle", "thread_hours") and value is not None else value
                for name, value in zip(result.names[1:], row[1:], strict=True)
            ),
        )
        for row in result.rows
    ]
    heading = ui.Column(key, _KEYS[key], "dataset" if key in ("request", "task") else "text")
    caption = f"{_KEYS[key]}s, the most idle thread hours first"
    return ui.Table(
        f"{key}s", (heading, *_COLUMNS), rows, caption, lambda: result.table, limit=_SHOWN, bars=1
    )


PAGE = PageDefinition("Steps", "What steps of production jobs cost.", view, needs_use=False)
