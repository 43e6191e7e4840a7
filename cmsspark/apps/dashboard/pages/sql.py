"""SQL: one reading query over the stored tables, with limits on time and rows."""

from __future__ import annotations

import threading
from typing import Any, Final

from cmsspark.apps.dashboard.memory_limit import memory_limit
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.widgets import Column, Content, Control, Kind, Note, Section, Table, shown
from cmsspark.base.errors import CmssparkError, NotReady, UsageError
from cmsspark.store.query.database import QueryResult

#: Seconds of a query, rows on the page and in a download, characters of a query, queries at once.
SECONDS, ROWS, DOWNLOADED, CHARACTERS, AT_ONCE = 20.0, 500, 200_000, 8_000, 2
#: Bytes of a result, as Arrow has it, and of the memory that running queries may take.
BYTES: Final = 100_000_000
MEMORY: Final = 2 << 30
_EXAMPLE: Final = (
    "SELECT data_tier, sum(accesses) AS accesses, sum(read_bytes) AS bytes, sum(jobs) AS jobs\n"
    "FROM data_aggregation\nWHERE day = (SELECT max(day) FROM data_aggregation)\n"
    "GROUP BY data_tier ORDER BY accesses DESC NULLS LAST"
)
_RUNNING: Final = threading.BoundedSemaphore(AT_ONCE)


def view(request: PageRequest) -> Content:
    """The form, and the rows of the query ``q`` of the address."""
    sql = request.parameters.get("q", "")
    if len(sql) > CHARACTERS:
        raise UsageError(f"a query has at most {CHARACTERS:,} characters", found=f"{len(sql):,}")
    notes, sections = [], []
    if sql and request.is_cross_site:
        notes.append(Note("Another site linked to this query. Read it, then run it yourself.", "warn"))
    elif sql:
        is_download = bool(request.parameters.get("download"))
        try:
            result = _run(request, sql, DOWNLOADED if is_download else ROWS)
            sections.append(Section("Rows", [_table(request, sql, result)], f"{result.seconds:.2f} s"))
        except CmssparkError as error:
            if is_download:
                raise
            notes.append(Note(shown(error.wanted), "bad"))
            for label, value in (("where", error.where), ("found", error.found), ("next", error.next_step)):
                notes += [Note(f"{label}: {shown(line)}") for line in str(value or "").splitlines() if line.strip()]
    sections.append(_tables(request))
    limits = f"One query that reads; {SECONDS:g} s, {ROWS:,} rows here and {DOWNLOADED:,} in a download."
    control = Control("q", "Query", sql or _EXAMPLE, kind="area", wide=True)
    return Content(
        "SQL", sections, f"{limits} Tables with a row for each person are left out.", [control], notes, "Run"
    )


def _run(request: PageRequest, sql: str, rows: int) -> QueryResult:
    if not _RUNNING.acquire(timeout=SECONDS):
        raise NotReady("other queries are running", found=f"{AT_ONCE} at once", next_step="run it again later")
    try:
        with memory_limit(MEMORY):
            return request.database.query(sql, max_rows=rows, max_seconds=SECONDS, max_bytes=BYTES)
    finally:
        _RUNNING.release()


def _table(request: PageRequest, sql: str, result: QueryResult) -> Table:
    columns = [
        Column(name, shown(name), _kind(str(field.type)))
        for name, field in zip(result.names, result.table.schema, strict=True)
    ]
    rows = [
        tuple(_value(value, column.kind) for value, column in zip(row, columns, strict=True)) for row in result.rows
    ]
    caption = (
        f"The first {len(rows):,} rows; a download has up to {DOWNLOADED:,}" if result.is_truncated else "All rows"
    )
    return Table("query", columns, rows, caption, lambda: result.table, empty="The query found no row.")


def _kind(arrow: str) -> Kind:
    return "count" if arrow.startswith(("int", "uint", "decimal128(38, 0)")) else "text"


def _value(value: Any, kind: Kind) -> Any:
    if value is None or kind == "count":
        return int(value) if value is not None else None
    if isinstance(value, float):
        return repr(value)
    return str(value)[:2_000]


def _tables(request: PageRequest) -> Section:
    rows = [
        (table.name, column.name, column.type, column.about)
        for table in request.database.tables
        for column in table.columns
    ]
    columns = (Column("table", "Table"), Column("column", "Column"), Column("type", "Type"), Column("about", "Meaning"))
    return Section("Tables", [Table("tables", columns, rows, "The tables, their columns and units")])


PAGE = PageDefinition("SQL", "One query over the stored tables.", view, needs_use=False, is_quick=False)
