"""The views of a database: each table of each job, tables by their plain names, and all stored days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.schemas import Column, Table, described_table, stored_table
from cmsspark.store.job_index import Job
from cmsspark.store.query import cost_views
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.separate_counts import read_schema, sql_expression

if TYPE_CHECKING:
    import duckdb

    from cmsspark.store.query.dump_views import DumpView
    from cmsspark.store.query.part_system import PartSystem

#: The view of all stored days and periods.
DAYS: Final = "stored_days"
#: The column of a view that has the rows of several jobs.
_JOB: Final = Column("job", "string", nullable=False, about="the job that stored the row: choose one, or group by it")


def view_schema(name: str, jobs: Sequence[Job]) -> Table:
    """Return the columns of the view ``name`` of a table that ``jobs`` write."""
    schema = read_schema(name)
    if len(jobs) == 1:
        return schema
    about = f"{schema.about} Rows of {' and '.join(job.name for job in jobs)}, which may have counted the same records."
    return Table(name, about, (*schema.columns, _JOB), schema.keys, schema.is_private)


def folder_name(job: Job, table: str) -> str:
    """Return the folder of a job's table in the file system of parts, which is also the name of its view."""
    return f"{job.name}.{table}"


class TableViews:
    """Creates the views that queries mention: creating all of them takes longer than most queries."""

    def __init__(self, system: PartSystem, jobs_by_table: Mapping[str, Sequence[Job]]) -> None:
        self._system, self._jobs_by_table = system, jobs_by_table
        self._created = {DAYS}

    def create(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Create the views of these tables, and those of costs, that are not there yet."""
        for name in names:
            if name not in self._created and name not in cost_views.VIEWS:
                self._create(connection, name)
                self._created.add(name)
        # Made of tables.
        for name in names:
            if name not in self._created:
                connection.execute(f"CREATE OR REPLACE VIEW {name} AS {cost_views.VIEWS[name]}")
                self._created.add(name)

    def _create(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        """Create ``JOB.TABLE`` for each job that writes the table, and ``TABLE`` with the rows of all of them."""
        jobs = self._jobs_by_table[name]
        for job in jobs:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{job.name}"')
            if not self._system.has(folder := folder_name(job, name)):
                self._system.put(folder, stored_table(name), [])
            rows_of_parts = _rows_of_parts(self._system, job, name)
            connection.execute(f'CREATE OR REPLACE VIEW "{job.name}"."{name}" AS {rows_of_parts}')
        # Where jobs are several, the column `job` tells their rows apart.
        job_columns = [f", '{job.name}' AS job" if len(jobs) > 1 else "" for job in jobs]
        rows = (f'FROM "{job.name}"."{name}" SELECT *{column}' for job, column in zip(jobs, job_columns, strict=True))
        connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {" UNION ALL ".join(rows)}')


def create_days_view(connection: duckdb.DuckDBPyConnection, system: PartSystem) -> None:
    """Create ``stored_days``; nothing is stored yet."""
    system.put_rows(days_schema(), days_columns([]))
    connection.execute(f"CREATE VIEW {DAYS} AS FROM read_parquet('{system.protocol}://{DAYS}/*')")


def create_dump_views(connection: duckdb.DuckDBPyConnection, system: PartSystem, dumps: Sequence[DumpView]) -> None:
    """Create a view for each table of a dump."""
    for table in dumps:
        system.put_parts(table.view, table.columns, table.parts)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
        connection.execute(f"CREATE VIEW {table.view} AS FROM read_parquet('{system.protocol}://{table.view}/*')")


def _rows_of_parts(system: PartSystem, job: Job, name: str) -> str:
    """Return the query of a job's table over its part files, whose folders name the day or the period."""
    from cmsspark.store.query.part_system import NO_DAY

    schema = read_schema(name)
    keys = ("period", "first_day", "last_day") if "period" in schema.names else ("day",)
    types = ", ".join(f"{key}: {'VARCHAR' if key == 'period' else 'DATE'}" for key in keys)
    columns = ", ".join(sql_expression(name, column) for column in schema.names)
    return (
        f"SELECT {columns} FROM read_parquet('{system.protocol}://{folder_name(job, name)}/*', "  # noqa: S608
        f"hive_partitioning = true, hive_types = {{{types}}}) WHERE {keys[-1]} > '{NO_DAY}'"
    )


def days_schema() -> Table:
    """Return the columns of the view ``stored_days``."""
    return described_table("schemas/views/stored_days.yaml")


def days_columns(stored: Sequence[StoredInterval]) -> dict[str, list[Any]]:
    """Return the columns of ``schemas/views/stored_days.yaml`` of all stored intervals."""
    days = [entry.interval if isinstance(entry.interval, date) else None for entry in stored]
    return {
        "table_name": [entry.table for entry in stored],
        "job": [entry.job for entry in stored],
        "day": days,
        "period": [str(entry.interval) if day is None else None for entry, day in zip(stored, days, strict=True)],
        "first_day": [entry.first_day for entry in stored],
        "last_day": [entry.last_day for entry in stored],
        "run": [entry.run for entry in stored],
        "made_ms": [entry.made_ms for entry in stored],
        "row_count": [entry.rows for entry in stored],
        "stored_bytes": [entry.bytes for entry in stored],
        "is_partial": [bool(entry.partial_reason) for entry in stored],
        "partial_reason": [entry.partial_reason or None for entry in stored],
        "is_damaged": [entry.fault is not None for entry in stored],
    }
