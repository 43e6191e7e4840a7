"""SQL: one reading query over the stored tables, with limits on time and rows."""

from __future__ import annotations

from typing import Final

from cmsspark.apps.dashboard.page import error_facts
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.query_process import Busy, Query
from cmsspark.apps.dashboard.widgets import (
    Column,
    Content,
    Control,
    Fold,
    Note,
    Section,
    Table,
    shown,
)
from cmsspark.base import schemas
from cmsspark.base.errors import CmssparkError, UsageError
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query.database import QueryResult
from cmsspark.store.query.table_views import DAYS

#: Seconds of a query, rows on the page and in a download, characters of a query.
SECONDS, ROWS, DOWNLOADED, CHARACTERS = 20.0, 500, 200_000, 8_000
#: Bytes of a result, as Arrow has it.
BYTES: Final = 100_000_000
_EXAMPLE: Final = (
    "SELECT data_tier, sum(accesses) AS accesses, sum(read_bytes) AS bytes, sum(jobs) AS jobs\n"
    "FROM data_aggregation\nWHERE day = (SELECT max(day) FROM data_aggregation)\n"
    "GROUP BY data_tier ORDER BY accesses DESC NULLS LAST"
)


def view(request: PageRequest) -> Content:
    """Return the form, and the rows of the query ``q`` of the address."""
    sql = request.parameters.get("q", "")
    if len(sql) > CHARACTERS:
        raise UsageError(f"a query has at most {CHARACTERS:,} characters", found=f"{len(sql):,}")
    notes: list[Note] = []
    sections: list[Section] = []
    tables: list[Section] = []
    is_download, is_busy = bool(request.parameters.get("download")), False
    try:
        # Before the query: a process that starts for it does not know that the store
        # was there before.
        tables = _tables(request)
        if sql and request.is_cross_site:
            notes.append(
                Note("Another site linked to this query. Read it, then run it yourself.", "warn")
            )
        elif sql:
            query = Query(sql, DOWNLOADED if is_download else ROWS, BYTES, SECONDS)
            result = request.queries.run(query, request.is_gone, request.visitor)
            sections.append(Section("Rows", [_table(result)], f"{result.seconds:.2f} s"))
    except CmssparkError as error:
        if is_download:
            raise
        notes += _error_notes(error)
        is_busy = isinstance(error, Busy)
    limits = f"One query that reads; {SECONDS:g} s, {ROWS:,} rows here and {DOWNLOADED:,} in a download."
    control = Control(
        "q", "Query", sql or _EXAMPLE, kind="area", wide=True, completions="words.json"
    )
    return Content(
        "SQL",
        sections + tables,
        f"{limits} Tables with a row for each person are left out.",
        [control],
        notes,
        "Run",
        is_busy,
    )


def _error_notes(error: CmssparkError) -> list[Note]:
    """Return the lines of an error as notes, so that the form with the query stays."""
    facts = error_facts(error).items()
    lines = [
        (label, line) for label, value in facts for line in value.splitlines() if line.strip()
    ]
    return [
        Note(shown(error.problem), "bad"),
        *(Note(f"{label}: {shown(line)}") for label, line in lines),
    ]


def _table(result: QueryResult) -> Table:
    counts = ("int", "uint", "decimal128(38, 0)")
    columns = [
        Column(name, shown(name), "count" if str(field.type).startswith(counts) else "text")
        for name, field in zip(result.names, result.table.schema, strict=True)
    ]
    caption = (
        f"The first {result.table.num_rows:,} rows; a download has up to {DOWNLOADED:,}"
        if result.is_truncated
        else "All rows"
    )
    return Table("query", columns, result.table, caption, "The query found no row.", limit=ROWS)


def words(request: PageRequest) -> list[str]:
    """Return the words that the form completes: tables and columns, tables with rows first."""
    tables = request.database.tables
    days = _days(request)
    names = sorted((table.name for table in tables), key=lambda name: (name not in days, name))
    return list(
        dict.fromkeys(
            [*names, *sorted({column.name for table in tables for column in table.columns})]
        )
    )


def _days(request: PageRequest) -> dict[str, tuple[int, str]]:
    """Table → the number of its stored days or periods, and the newest."""
    answer = request.database.query(
        "SELECT table_name, count(*), max(coalesce(period, day::VARCHAR)) FROM stored_days GROUP BY 1"
    )
    return {row[0]: (row[1], row[2]) for row in answer.rows}


def _columns(table: schemas.Table) -> Table:
    rows = [(column.name, column.type, column.about) for column in table.columns]
    columns = (
        Column("column", "Column", "insert"),
        Column("type", "Type"),
        Column("about", "Meaning"),
    )
    return Table(
        f"columns_{table.name}", columns, rows, f"Columns of {table.name}", limit=len(rows)
    )


def _tables(request: PageRequest) -> list[Section]:
    days = _days(request)
    opened = request.parameters.get("table", "")
    folds: dict[bool, list[Fold]] = {True: [], False: []}
    for table in request.database.tables:
        count, newest = days.get(table.name, (0, ""))
        note = (
            f"{pluralize(count, 'day or period', 'days and periods')}, newest {newest}"
            if count
            else ""
        )
        is_stored = bool(count) or table.name == DAYS
        is_opened = table.name == opened
        folds[is_stored].append(
            Fold(
                table.name,
                [_columns(table)] if is_opened else [],
                note or "all stored days and periods" * is_stored,
                ""
                if is_opened
                else f"{request.link('sql', table=table.name)}#columns-{table.name}",
                f"columns-{table.name}",
            )
        )
    about = "Open a table to see its columns. As you type, the form completes their names: Tab takes the first."
    sections = [Section("Stored tables", folds[True], about)]
    if folds[False]:
        sections.append(
            Section("Tables without stored results", [Fold("Show them", folds[False])])
        )
    return sections


PAGE = PageDefinition(
    "SQL", "One query over the stored tables.", view, needs_use=False, is_quick=False
)
