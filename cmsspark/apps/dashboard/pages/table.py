"""Table: the rows of any stored table, such as that of a job of one's own, with the
columns and the condition that are chosen, and the sum of a column by day.
"""

from __future__ import annotations

from typing import Final

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import text_parameter
from cmsspark.apps.dashboard.table_views import COMPARISONS, VIEWS, Condition, RowQuery
from cmsspark.base import periods
from cmsspark.base.errors import UsageError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import results
from cmsspark.store.own_jobs import JOBS, job_of_table
from cmsspark.store.query.table_views import DAYS
from cmsspark.store.stored_days import CurrentRuns, stale, stored_periods

#: Columns that the page leaves out.
_ADDED: Final = ("timestamp", "first_day", "last_day")
#: Rows of all days or periods, about, whose sums are drawn without being asked for.
_CHARTED: Final = 2_000_000


def view(request: PageRequest) -> ui.Content:
    """Return the rows of a day or period of a table. Raises UsageError (2) for a table,
    day or column that is not there.
    """
    stored, page, parameters = _stored(request), Page(request), request.parameters
    tables = {table.name: table for table in request.database.tables}
    requested_table = text_parameter(parameters, "table")
    choices = [name for name in tables if name in stored]
    if not stored or (requested_table in tables and requested_table not in stored):
        job = (
            job_of_table(requested_table)
            if requested_table in tables
            else JOBS["data_aggregation"]
        )
        interval = "--month last" if job.of_periods else "--date DAY"
        text = (
            f"Nothing of {requested_table} is stored."
            if requested_table
            else "No table is stored."
        )
        note = ui.Note(f"{text} Run: run_spark {job.name} {interval}")
        controls = [ui.Control("table", "Table", "", [(name, name) for name in choices])]
        return ui.Content("Table", [], controls=controls if choices else [], notes=[note])
    table = tables[page.choose("table", "Table", choices)]
    view = VIEWS.get(table.name)
    intervals = stored[table.name]
    interval = page.choose("when", "Day or period", reversed(intervals))
    names = [name for name in table.names if name not in _ADDED]
    requested = parameters.get("columns") or ()
    chosen = [requested] if isinstance(requested, str) else list(requested)
    if unknown := [name for name in chosen if name not in names]:
        raise UsageError(
            f"{table.name} has no column {unknown[0][:80]!r}", found=f"columns: {', '.join(names)}"
        )
    page.many("columns", "Columns", dict(zip(names, names, strict=True)), chosen)
    condition = Condition(
        page.choose("where", "Where", names, view.column if view else "", every="all rows"),
        page.choose("is", "Compared", COMPARISONS.keys()),
        page.text(
            "value", "Value", default=view.value if view and "value" not in parameters else ""
        ),
    )
    rows = RowQuery(request, table, interval, chosen or names, condition, view)
    measures = table.additive
    is_quick = rows.num_rows * len(intervals) <= _CHARTED
    default = next(iter(measures), "") if is_quick else ""
    measure = page.choose("sum", "Chart", measures, default, every="none")
    page.sections += view.sections(rows) if view else []
    page.section(interval, rows.table())
    if measure and len(intervals) > 1:
        page.section("Sums", rows.chart(measure))
    page.notes += _notes(request, table.name, interval)
    return page.content("Table", table.about)


def _notes(request: PageRequest, table: str, interval: str) -> list[ui.Note]:
    """Return notes on a day or period that is partial, and on a period whose days have
    changed since its rows were made.
    """
    notes = [
        ui.Note(f"Days of {interval} are left out or partial: {entry.partial_reason}.", "warn")
        for entry in request.database.stored(table)
        if str(entry.interval) == interval and entry.partial_reason
    ]
    if not isinstance(period := periods.named(interval), periods.Period):
        return notes
    files, fout = LocalFiles(), request.database.fout
    for job in JOBS.values():
        if job.of_days and table in job.tables and period in stored_periods(files, fout, job.name):
            manifest = results.current(files, fout, job.name, job.tables[0], period).manifest
            days = CurrentRuns(files, fout, job.of_days).find(period)
            if changed := "; ".join(stale(manifest, days)):
                text = f"Days of {interval} have changed since these rows were made ({changed})."
                notes.append(ui.Note(f"{text} Run: run_spark {job.name}", "warn"))
    return notes


def _stored(request: PageRequest) -> dict[str, list[str]]:
    """Return the days and periods of each table, in order."""
    answer = request.database.query(
        f"SELECT table_name, coalesce(period, day::VARCHAR) AS name FROM {DAYS} ORDER BY 1, 2"
    )
    stored: dict[str, list[str]] = {}
    for table, name in answer.rows:
        if name not in stored.setdefault(table, []):
            stored[table].append(name)
    return stored


PAGE = PageDefinition(
    "Table", "Rows of any stored table, also of jobs of your own.", view, needs_use=False
)
