"""Answers to ``show tables`` and ``describe TABLE``: meaning and units of columns, and
the stored days.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.base.schemas import Column, Table
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.query.table_views import DAYS

if TYPE_CHECKING:
    import pyarrow as pa

_SHOW_TABLES: Final = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
_DESCRIBE: Final = re.compile(
    r'\s*(?:describe|desc|show)\s+(?:table\s+)?([\w."]+)\s*;?\s*', re.IGNORECASE
)
_DUCKDB_TYPES: Final = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "int": "INTEGER",
    "double": "DOUBLE",
    "date": "DATE",
    "boolean": "BOOLEAN",
}
_TABLES: Final = Table(
    "tables",
    "",
    (
        *(
            Column("table_name", "string"),
            Column("stored_count", "long"),
            Column("first_day", "date"),
        ),
        *(Column("last_day", "date"), Column("meaning", "string")),
    ),
)
_COLUMNS: Final = Table(
    "columns",
    "",
    tuple(Column(name, "string") for name in ("column_name", "column_type", "unit", "meaning")),
)


#: Returns the schemas of all views.
Views = Callable[[], Mapping[str, Table]]
#: Returns the stored days or periods of some views.
Stored = Callable[[Sequence[str]], Mapping[str, Sequence[StoredInterval]]]


def description(sql: str, find_views: Views, find_stored: Stored) -> tuple[pa.Table, str] | None:
    """Return the rows of ``show tables`` or ``describe TABLE`` with a sentence above
    them; None for other queries.

    A name that is no view is left to DuckDB, whose error suggests another one.
    """
    if _SHOW_TABLES.fullmatch(sql):
        return _all_tables(find_views(), find_stored), ""
    match = _DESCRIBE.fullmatch(sql)
    if match is None:
        return None
    name = match[1].replace('"', "").lower()
    schema = find_views().get(name)
    if schema is None:
        return None
    stored = f" {_days_text(find_stored([name])[name])}" if name != DAYS else ""
    return _columns(schema), f"{name}: {schema.about}{stored}"


def _all_tables(views: Mapping[str, Table], find_stored: Stored) -> pa.Table:
    from cmsspark.store.query.part_system import build_table

    # The view of a job is another one than that of the table only where several jobs
    # write the table.
    names = [
        name for name in views if "." not in name or "job" in views[name.rpartition(".")[2]].names
    ]
    by_view = find_stored(names)
    stored = [by_view[name] for name in names]
    columns: dict[str, Sequence[object]] = {
        "table_name": names,
        "stored_count": [
            len({interval.interval for interval in intervals}) for intervals in stored
        ],
        "first_day": [_first(intervals) for intervals in stored],
        "last_day": [_last(intervals) for intervals in stored],
        "meaning": [views[name].about for name in names],
    }
    return build_table(_TABLES, columns)


def _columns(schema: Table) -> pa.Table:
    from cmsspark.store.query.part_system import build_table

    columns: dict[str, Sequence[object]] = {
        "column_name": schema.names,
        "column_type": [_DUCKDB_TYPES[column.type] for column in schema.columns],
        "unit": [column.unit for column in schema.columns],
        "meaning": [column.about for column in schema.columns],
    }
    return build_table(_COLUMNS, columns)


def _first(intervals: Sequence[StoredInterval]) -> date | None:
    return min((interval.first_day for interval in intervals), default=None)


def _last(intervals: Sequence[StoredInterval]) -> date | None:
    return max((interval.last_day for interval in intervals), default=None)


def _days_text(intervals: Sequence[StoredInterval]) -> str:
    if not intervals:
        return "Nothing of it is stored."
    distinct = {interval.interval for interval in intervals}
    days = sum(isinstance(interval, date) for interval in distinct)
    counts = [
        pluralize(count, word)
        for count, word in ((days, "day"), (len(distinct) - days, "period"))
        if count
    ]
    return f"Stored: {' and '.join(counts)}, {_first(intervals)} to {_last(intervals)}."
