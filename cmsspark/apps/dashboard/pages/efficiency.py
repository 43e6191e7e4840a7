"""Efficiency: what HTCondor's jobs cost, workflows by wasted core hours, and the sites
of a workflow.
"""

from __future__ import annotations

import shlex
from datetime import date
from typing import Any, Final

from cmsspark.apps.ask import costs
from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import choice_parameter, day_parameter, text_parameter
from cmsspark.base import dates, efficiency
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import between
from cmsspark.base.text.terminal import pluralize

#: Days without a period in the address, and at most.
_DAYS, _MOST = 30, 400
#: Rows that a page shows of a table.
_SHOWN: Final = 20
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
    days = request.database.days("job_efficiency")
    if not days:
        note = ui.Note(
            "No day of HTCondor's jobs is stored. Run: run_spark job_efficiency --date DAY"
        )
        return ui.Content("Efficiency", [], notes=[note])
    first, last = choose_period(request, days)
    sql = "SELECT DISTINCT {} FROM job_efficiency WHERE day BETWEEN ? AND ? ORDER BY 1"
    values = {name: request.values(sql.format(name), [first, last]) for name in _CONDITIONS}
    chosen = {
        name: choice_parameter(request.parameters, name, ["", *result], "")
        for name, result in values.items()
    }
    text = text_parameter(request.parameters, "q")
    workflow = text_parameter(request.parameters, "workflow")
    condition, filters = choose_rows({**chosen, "workflow": workflow}, "workflow", text)
    where, parameters = f"day BETWEEN ? AND ? AND {condition}", [first, last, *filters]
    controls = [
        ui.Control("from", "From", first.isoformat(), kind="date"),
        ui.Control("to", "To (included)", last.isoformat(), kind="date"),
        *(
            ui.Control(
                name,
                label,
                chosen[name],
                [("", "all"), *((entry, ui.shown(entry)) for entry in values[name])],
            )
            for name, label in _CONDITIONS.items()
        ),
        ui.Control("q", "Workflow contains", text, kind="text"),
    ]
    total = request.database.query(
        f"SELECT {costs.JOBS} FROM job_efficiency WHERE {where}", parameters
    ).rows[0]
    sections = [
        ui.Section("In total", [_figures(total), _by_day(request, first, last, where, parameters)])
    ]
    if workflow:
        sections.append(
            ui.Section(
                f"Sites of {ui.shown(workflow)}",
                [_ranking(request, "site", (first, last), condition, filters)],
            )
        )
    else:
        sections.append(
            ui.Section(
                "Workflows by wasted core hours",
                [_ranking(request, "workflow", (first, last), condition, filters)],
                command=f"cmsspark ask worst workflows{_typed(chosen['site'], first, last)}",
            )
        )
        sections.append(
            ui.Section(
                "Sites by wasted core hours",
                [_ranking(request, "site", (first, last), condition, filters)],
                command=f"cmsspark ask worst sites{_typed('', first, last)}",
            )
        )
    sections.append(
        ui.Section("CPU in HS23 by month", [_benchmark(request, condition, filters)], _HS23)
    )
    sections.append(ui.Section("Outliers", [_outliers(request, where, parameters)], _OUTLIERS))
    notes = missing_days(days, first, last)
    (earlier,) = request.database.query(
        "SELECT count(DISTINCT day) FROM job_efficiency WHERE day BETWEEN ? AND ?"
        " AND last_core_with_cpu_ms IS NULL",
        [first, last],
    ).rows[0]
    if earlier:
        text = (
            f"{pluralize(earlier, 'day')} of these, counted by earlier rules, lack the sums of the efficiencies and of"
            " wasted and evicted core hours, and are not in them. Run: run_spark job_efficiency --date DAY"
        )
        notes.append(ui.Note(text, "warn"))
    return ui.Content(
        "Efficiency", sections, f"Jobs of HTCondor that ended, {first} to {last}.", controls, notes
    )


_OUTLIERS: Final = (
    "Jobs with an efficiency of 100 % or more: the wall-clock time of short jobs is logged too"
    " small. They are among the jobs that did not fail."
)


_HS23: Final = (
    "CPU hours times the benchmark of the machine (HS23, before it HS06: one is as much as the"
    " other), of jobs whose machine names one; all stored months."
)


def _typed(site: str, first: date, last: date) -> str:
    return f"{f' --site {shlex.quote(site)}' if site else ''} --from {first} --to {last}"


def missing_days(days: list[date], first: date, last: date) -> list[ui.Note]:
    """Return a note on days of a period that are not stored."""
    missing = (last - first).days + 1 - sum(first <= day <= last for day in days)
    text = f"{missing:,} of the days from {first} to {last} are not stored."
    return [ui.Note(text, "warn")] if missing else []


def choose_period(request: PageRequest, days: list[date]) -> tuple[date, date]:
    """Return the period of the address, by default the newest days. Raises UsageError (2)."""
    last = day_parameter(request.parameters, "to", days[-1])
    first = day_parameter(
        request.parameters, "from", max(days[0], dates.days_before(last, _DAYS - 1))
    )
    if not 0 <= (last - first).days < _MOST:
        raise UsageError(
            f"the page shows at most {_MOST} days, in order", found=f"{first} to {last}"
        )
    return first, last


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
    result = request.database.query(query, parameters)
    # Days without a job have a place, too.
    days = between(first, last).days
    hours = {(row[0], row[1]): round(row[2], 1) for row in result.rows}
    outcomes = [
        name
        for name in ("ok", "outlier", "failed", "removed")
        if any(key[1] == name for key in hours)
    ]
    series = {name: [hours.get((day, name)) for day in days] for name in outcomes}
    columns = (
        ui.Column("day", "Day", "day"),
        ui.Column("outcome", "Outcome"),
        ui.Column("core_hours", "Core hours", "count"),
    )
    rows = [(row[0], row[1], round(row[2])) for row in result.rows]
    table = ui.Table(
        "outcomes", columns, rows, "Core hours by day and outcome", lambda: result.table
    )
    labels = [day.isoformat() for day in days]
    return ui.Chart(
        "outcomes",
        "Core hours by outcome",
        "columns",
        labels,
        series,
        y_title="Core hours",
        table=table,
    )


def _benchmark(request: PageRequest, condition: str, values: list[Any]) -> ui.Chart:
    """Return the CPU hours of each month by tier, in units of the machines' benchmark."""
    result = request.database.query(
        "SELECT strftime(day, '%Y-%m') AS month, tier, sum(hs06_cpu_ms) / 3600000 AS hs23_hours,"
        " sum(hs06_job_count) AS jobs, sum(job_count) AS all_jobs FROM job_efficiency"
        f" WHERE {condition} GROUP BY ALL ORDER BY ALL",
        values,
    )
    months = sorted({row[0] for row in result.rows})
    hours = {(row[1], row[0]): round(row[2], 1) for row in result.rows}
    tiers = sorted({key[0] for key in hours})
    columns = (
        ui.Column("month", "Month"),
        ui.Column("tier", "Tier"),
        ui.Column("hs23_hours", "HS23 hours", "count"),
        ui.Column("jobs", "Jobs", "count", "whose machine names a benchmark"),
        ui.Column("all_jobs", "Of jobs", "count"),
    )
    rows = [(row[0], ui.shown(row[1]), round(row[2]), *row[3:]) for row in result.rows]
    table = ui.Table("hs23", columns, rows, "CPU in HS23 by month and tier", lambda: result.table)
    return ui.Chart(
        "hs23",
        "HS23 hours by month",
        "columns",
        months,
        {ui.shown(tier): [hours.get((tier, month)) for month in months] for tier in tiers},
        "",
        "Month",
        "HS23 hours",
        table=table,
    )


def _ranking(
    request: PageRequest, key: str, period: tuple[date, date], condition: str, values: list[Any]
) -> ui.Table:
    result = costs.rank(request.database, costs.RANKINGS[f"{key}s"], *period, condition, values)
    rows = [
        (
            _name(request, key, name),
            _rounded(wasted),
            cpu_efficiency,
            _rounded(core_hours),
            _rounded(lost),
            jobs,
            allocated,
            _rounded(evicted),
        )
        for name, wasted, cpu_efficiency, core_hours, lost, jobs, allocated, evicted in result.rows
    ]
    heading = (
        ui.Column(key, "Workflow", "dataset") if key == "workflow" else ui.Column(key, "Site")
    )
    caption = (
        "Workflows, the largest waste first"
        if key == "workflow"
        else "Sites, the largest waste first"
    )
    return ui.Table(
        f"{key}s", (heading, *_COLUMNS), rows, caption, lambda: result.table, limit=_SHOWN, bars=1
    )


def _name(request: PageRequest, key: str, name: str | None) -> Any:
    if name is None:
        return "no workflow"
    return (
        ui.Cell(ui.shown(name), request.link_here(workflow=name))
        if key == "workflow"
        else ui.shown(name)
    )


def _rounded(hours: float | None) -> int | None:
    return None if hours is None else round(hours)


def _outliers(request: PageRequest, where: str, parameters: list[Any]) -> ui.Table:
    query = (
        "SELECT workflow, site, sum(job_count) AS jobs, sum(core_ms) / 3600000 AS core_hours,"
        f" {efficiency.ratio_sql(efficiency.CPU)} AS efficiency FROM job_efficiency WHERE {where}"
        " AND outcome = 'outlier' GROUP BY ALL ORDER BY jobs DESC, 1, 2"
    )
    result = request.database.query(query, parameters)
    columns = (
        ui.Column("workflow", "Workflow", "dataset"),
        ui.Column("site", "Site"),
        ui.Column("jobs", "Jobs", "count"),
        ui.Column("core_hours", "Core hours", "count"),
        ui.Column("efficiency", "CPU efficiency", "share"),
    )
    rows = [
        (ui.shown(row[0] or "no workflow"), ui.shown(row[1]), row[2], round(row[3]), row[4])
        for row in result.rows
    ]
    return ui.Table(
        "outliers", columns, rows, "Outliers, most jobs first", lambda: result.table, limit=_SHOWN
    )


PAGE = PageDefinition("Efficiency", "What jobs cost and wasted.", view, needs_use=False)
