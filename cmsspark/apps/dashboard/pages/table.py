"""Table: the rows of any stored table, such as that of a job of one's own, with the
columns and the condition that are chosen, and the sum of a column by day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import choice_parameter, text_parameter
from cmsspark.base import periods, schemas
from cmsspark.base.errors import UsageError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import results
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.query.table_views import DAYS
from cmsspark.store.stored_days import CurrentRuns, stale, stored_periods

#: Rows of a download, and days of the chart.
DOWNLOADED, CHARTED = 200_000, 400
_NO_CONDITION: Final = ""
#: How a column is compared, in SQL; all but the last take a value.
_COMPARISONS: Final = {
    "is": "{column}::VARCHAR = $value",
    "is not": "{column}::VARCHAR IS DISTINCT FROM $value",
    "contains": "contains({column}::VARCHAR, $value)",
    "at least": "{column} >= try_cast($value AS DOUBLE)",
    "at most": "{column} <= try_cast($value AS DOUBLE)",
    "is null": "{column} IS NULL",
}
_ADDED: Final = ("timestamp", "first_day", "last_day")


def view(request: PageRequest) -> ui.Content:
    """Return the rows of a day or period of a table. Raises UsageError (2) for a table,
    day or column that is not there.
    """
    stored = _stored(request)
    tables = {table.name: table for table in request.database.tables if table.name in stored}
    if not tables:
        note = ui.Note("No table is stored. Run: run_spark data_aggregation --date DAY")
        return ui.Content("Table", [], notes=[note])
    parameters = request.parameters
    table = tables[choice_parameter(parameters, "table", list(tables), next(iter(tables)))]
    intervals = stored[table.name]
    interval = choice_parameter(parameters, "when", intervals, intervals[-1])
    names = [name for name in table.names if name not in _ADDED]
    requested = parameters.get("columns") or ()
    chosen = [requested] if isinstance(requested, str) else list(requested)
    if unknown := [name for name in chosen if name not in names]:
        raise UsageError(
            f"{table.name} has no column {unknown[0][:80]!r}", found=f"columns: {', '.join(names)}"
        )
    measures = table.additive
    measure = choice_parameter(parameters, "sum", ["", *measures], next(iter(measures), ""))
    condition = _Condition.parse(request, names)
    query = _Query(request, table, interval, chosen or names, condition)
    sections = [ui.Section(interval, [query.rows()])]
    if measure and len(intervals) > 1:
        sections.append(ui.Section("Sums", [query.chart(measure)]))
    controls = [
        ui.Control("table", "Table", table.name, [(name, name) for name in tables]),
        ui.Control(
            "when", "Day or period", interval, [(name, name) for name in reversed(intervals)]
        ),
        ui.Control(
            "columns", "Columns", "", [(name, name) for name in names], "many", chosen=chosen
        ),
        ui.Control(
            "where",
            "Where",
            condition.column,
            [(_NO_CONDITION, "all rows"), *zip(names, names, strict=True)],
        ),
        ui.Control("is", "Compared", condition.word, [(word, word) for word in _COMPARISONS]),
        ui.Control("value", "Value", condition.value, kind="text"),
        ui.Control("sum", "Chart", measure, [("", "none"), *zip(measures, measures, strict=True)]),
    ]
    return ui.Content(
        "Table", sections, table.about, controls, _stale_notes(request, table.name, interval)
    )


def _stale_notes(request: PageRequest, table: str, interval: str) -> list[ui.Note]:
    """Return a note on a period whose days have changed since its rows were made."""
    if not isinstance(period := periods.named(interval), periods.Period):
        return []
    files, fout = LocalFiles(), request.database.fout
    notes = []
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


class _Condition:
    """A comparison of one column with a value; without a column all rows."""

    def __init__(self, column: str, word: str, value: str) -> None:
        self.column, self.word, self.value = column, word, value

    @classmethod
    def parse(cls, request: PageRequest, names: Sequence[str]) -> _Condition:
        """Return the condition of the address. Raises UsageError (2)."""
        column = choice_parameter(request.parameters, "where", ["", *names], _NO_CONDITION)
        word = choice_parameter(request.parameters, "is", list(_COMPARISONS), "is")
        return cls(column, word, text_parameter(request.parameters, "value"))

    @property
    def sql(self) -> str:
        """The condition as SQL, whose value is the parameter ``$value``."""
        if not self.column:
            return "true"
        return _COMPARISONS[self.word].format(column=_quoted(self.column))

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the SQL."""
        return {"value": self.value} if "$value" in self.sql else {}


class _Query:
    def __init__(
        self,
        request: PageRequest,
        table: schemas.Table,
        interval: str,
        names: Sequence[str],
        condition: _Condition,
    ) -> None:
        self.request, self.table, self.names = request, table, names
        self.condition = condition
        self.interval = _quoted("period" if "period" in table.names else "day")
        self.where = f"{self.interval}::VARCHAR = $when AND {condition.sql}"
        self.parameters = {"when": interval, **condition.parameters}
        self.source = _quoted(table.name)

    def rows(self) -> ui.Table:
        """Return the table of rows, of which a page is read at a time."""
        count = self.request.values(
            f"SELECT count(*) FROM {self.source} WHERE {self.where}", self.parameters
        )[0]
        by_name = {column.name: column for column in self.table.columns}
        columns = [
            ui.Column(name, name, _kind(by_name[name]), by_name[name].about) for name in self.names
        ]
        keys = [name for name in self.table.keys if name in self.table.names]
        order = ", ".join(_quoted(name) for name in keys) or "1"

        def load(column: str, is_down: bool, first: int, number: int) -> list[tuple[Any, ...]]:
            by = order
            if column in by_name:
                by = f"{_quoted(column)} {'DESC' if is_down else 'ASC'} NULLS LAST, {order}"
            answer = self._select(f"ORDER BY {by} LIMIT {int(number)} OFFSET {int(first)}")
            return [
                tuple(
                    value if entry.kind != "text" or value is None else str(value)
                    for value, entry in zip(row, columns, strict=True)
                )
                for row in answer.rows
            ]

        def download() -> pa.Table:
            return self._select(f"ORDER BY {order} LIMIT {DOWNLOADED}").table

        return ui.Table(
            "rows",
            columns,
            (),
            f"Rows of {self.table.name}; a download has up to {DOWNLOADED:,}",
            download,
            row_count=int(count),
            empty="No row fits.",
            limit=50,
            load=load,
        )

    def _select(self, clause: str) -> Any:
        columns = ", ".join(_quoted(name) for name in self.names)
        return self.request.database.query(
            f"SELECT {columns} FROM {self.source} WHERE {self.where} {clause}",
            self.parameters,
            max_rows=DOWNLOADED,
        )

    def chart(self, measure: str) -> ui.Chart:
        """Return the sums of a column by day or period, of the rows that fit."""
        answer = self.request.database.query(
            f"SELECT {self.interval}::VARCHAR, sum({_quoted(measure)}) FROM {self.source} "
            f"WHERE {self.condition.sql} GROUP BY 1 ORDER BY 1 DESC LIMIT {CHARTED}",
            self.condition.parameters,
        )
        rows = list(reversed(answer.rows))
        column = next(entry for entry in self.table.columns if entry.name == measure)
        unit = "B" if column.unit == "bytes" else column.own_unit
        values = [None if value is None else float(value) for _, value in rows]
        named = "period" if "period" in self.table.names else "day"
        columns = [ui.Column(named, named), ui.Column(measure, measure, _kind(column))]
        exact = [(str(name), value) for name, value in rows]
        return ui.Chart(
            "sums",
            f"{measure} by {named}",
            "line",
            [str(name) for name, _ in rows],
            {measure: values},
            unit,
            table=ui.Table("sums", columns, exact, f"Sums of {measure}"),
        )


def _kind(column: schemas.Column) -> ui.Kind:
    if column.type in ("long", "int"):
        return "bytes" if column.unit == "bytes" else "count"
    return "text"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


PAGE = PageDefinition(
    "Table", "Rows of any stored table, also of jobs of your own.", view, needs_use=False
)
