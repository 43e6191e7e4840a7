"""The views of a database: each table of each job, tables by their plain names, all
stored days, and CMSSpark's own numbers of CPU efficiency (rule 52).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base import efficiency
from cmsspark.base.schemas import Column, Table, described_table, stored_table
from cmsspark.store.job_index import Job
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.separate_counts import read_schema, sql_expression

if TYPE_CHECKING:
    import duckdb

    from cmsspark.store.query.dump_views import DumpView
    from cmsspark.store.query.part_system import PartSystem

#: The tables that the views are made of.
TABLES: Final = ("job_efficiency", "period_job_efficiency")
_EFFICIENCY: Final = "cmsspark_cpu_efficiency"

#: The rows of days and of periods, told apart by their kind: a period has its days' sums again.
_JOBS: Final = """
  SELECT 'day' AS period_kind, strftime(day, '%Y-%m-%d') AS period, * EXCLUDE (day, timestamp) FROM job_efficiency
  UNION ALL BY NAME SELECT CASE WHEN period LIKE '____-W__' THEN 'week' WHEN period LIKE '____-__' THEN 'month'
  ELSE 'range' END AS period_kind, * EXCLUDE (first_day, last_day, day_count, timestamp) FROM period_job_efficiency
"""
#: Ratios in percent, each of two sums over the same jobs, and what they are.
_RATIOS: Final = {
    "CpuEfficiency": (efficiency.CPU, "CPU time of the core time of the last start, in percent"),
    "AllocatedEfficiency": (
        efficiency.ALLOCATED,
        "CPU time of the core time of all starts, in percent",
    ),
    "CpuEff": (
        ("cpu_ms", "wall_core_with_cpu_ms"),
        "CMSSpark's efficiency, by WallClockHr as logged: too low after evictions to 2026-07-26, leaps the next day",
    ),
    "NonEvictionEff": (
        ("cpu_with_committed_ms", "committed_core_with_cpu_ms"),
        "CMSSpark's: CPU time of the committed core time, in percent",
    ),
    "ScheduleEff": (
        ("committed_wall_ms", "wall_with_committed_ms"),
        "CMSSpark's: committed wall-clock time of that logged, in percent",
    ),
}
#: Sums in hours, and what they are.
_HOURS: Final = {
    "CpuTimeHr": ("cpu_ms", "CPU hours"),
    "CoreTimeHr": ("core_ms", "core hours of all starts"),
    "LastCoreHr": ("last_core_ms", "core hours of the last start"),
    "EvictedCoreHr": ("evicted_core_ms", "core hours of starts that were evicted"),
    "CommittedCoreHr": ("committed_core_ms", "core hours of a last start that ended by itself"),
    "WallClockHr": ("wall_ms", "wall-clock hours as logged"),
    "CommittedWallClockHr": ("committed_wall_ms", "wall-clock hours of such a last start"),
    "WastedCpuTimeHr": ("core_with_cpu_ms - cpu_ms", "evicted and idle core hours"),
}
#: Columns by which the rows of the views are told apart, and what they are.
_KEYS: Final = {
    "period_kind": ("period_kind", "day, week, month or range: choose one"),
    "period": ("period", "2026-11-01, 2026-W46, 2026-11 or 2026-11-01--2026-11-10"),
    "Type": ("type", "analysis, production, tier0 or test"),
    "Workflow": ("workflow", "Workflow as logged"),
    "WMAgent_RequestName": ("request", "the request, of production only"),
}
_TIER: Final = {"Tier": ("tier", "T0, T1, T2, T3 or unknown")}


def _measures(condition: str = "true", suffix: str = "") -> str:
    """Return the columns of the jobs that meet a condition."""
    columns = [
        f'100.0 * {efficiency.ratio_sql(sums, condition)} AS "{name}{suffix}"'
        for name, (sums, _) in _RATIOS.items()
    ]
    columns += [
        f'"NonEvictionEff{suffix}" - "CpuEff{suffix}" AS "EvictionAwareEffDiff{suffix}"',
        *(
            f'sum({hours}) FILTER ({condition}) / 3600000 AS "{name}{suffix}"'
            for name, (hours, _) in _HOURS.items()
        ),
    ]
    return ", ".join(columns)


def _view(keys: Mapping[str, tuple[str, str]], measures: str) -> str:
    names = ", ".join(f'{column} AS "{name}"' for name, (column, _) in keys.items())
    return (
        f"SELECT {names}, sum(job_count) AS jobs, {measures} FROM ({_JOBS})"  # noqa: S608
        f" WHERE {efficiency.CONDITION} AND type IN ('analysis', 'production', 'tier0', 'test') GROUP BY ALL"
    )


def _efficiency_schema(name: str, keys: Mapping[str, tuple[str, str]], *suffixes: str) -> Table:
    measures = {
        **{name: about for name, (_, about) in _RATIOS.items()},
        "EvictionAwareEffDiff": "CMSSpark's: NonEvictionEff - CpuEff",
        **{name: about for name, (_, about) in _HOURS.items()},
    }
    columns = [Column(name, "string", about=about) for name, (_, about) in keys.items()]
    columns.append(Column("jobs", "long", about="jobs that did not fail"))
    columns += [
        Column(f"{measure}{suffix}", "double", about=about + (", at T1 and T2" if suffix else ""))
        for suffix in ("", *suffixes)
        for measure, about in measures.items()
    ]
    about = (
        f"Efficiency {efficiency.POPULATION} by workflow, with CMSSpark's columns: rows of days and of each kind of"
        " period, made from job_efficiency and period_job_efficiency."
    )
    return Table(name, about, tuple(columns))


_T1T2: Final = _measures("tier IN ('T1', 'T2')", "T1T2")
#: The views by name: of a workflow at all sites, with its numbers at T1 and T2 beside;
#: and by tier.
VIEWS: Final = {
    _EFFICIENCY: _view(_KEYS, f"{_measures()}, {_T1T2}"),
    f"{_EFFICIENCY}_by_tier": _view(_KEYS | _TIER, _measures()),
}


def efficiency_schemas() -> list[Table]:
    """Return the columns of ``VIEWS``."""
    return [
        _efficiency_schema(_EFFICIENCY, _KEYS, "T1T2"),
        _efficiency_schema(f"{_EFFICIENCY}_by_tier", _KEYS | _TIER),
    ]


#: The view of all stored days and periods.
DAYS: Final = "stored_days"
#: The column of a view that has the rows of several jobs.
_JOB: Final = Column(
    "job",
    "string",
    nullable=False,
    about="the job that stored the row: choose one, or group by it",
)


def view_schema(name: str, jobs: Sequence[Job]) -> Table:
    """Return the columns of the view ``name`` of a table that ``jobs`` write."""
    schema = read_schema(name)
    if len(jobs) == 1:
        return schema
    about = f"{schema.about} Rows of {' and '.join(job.name for job in jobs)}, which may have counted the same records."
    return Table(name, about, (*schema.columns, _JOB), schema.keys, schema.is_private)


def folder_name(job: Job, table: str) -> str:
    """Return the folder of a job's table in the file system of parts, which is also the
    name of its view.
    """
    return f"{job.name}.{table}"


class TableViews:
    """Creates the views that queries mention: creating all of them takes longer than most queries."""

    def __init__(self, system: PartSystem, jobs_by_table: Mapping[str, Sequence[Job]]) -> None:
        self._system, self._jobs_by_table = system, jobs_by_table
        self._created = {DAYS}

    def create(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        """Create the views of these tables, and those of costs, that are not there yet."""
        for name in names:
            if name not in self._created and name not in VIEWS:
                self._create(connection, name)
                self._created.add(name)
        # Made of tables.
        for name in names:
            if name not in self._created:
                connection.execute(f"CREATE OR REPLACE VIEW {name} AS {VIEWS[name]}")
                self._created.add(name)

    def _create(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        """Create ``JOB.TABLE`` for each job that writes the table, and ``TABLE`` with
        the rows of all of them.
        """
        jobs = self._jobs_by_table[name]
        for job in jobs:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{job.name}"')
            if not self._system.has(folder := folder_name(job, name)):
                self._system.put(folder, stored_table(name), [])
            rows_of_parts = _rows_of_parts(self._system, job, name)
            connection.execute(f'CREATE OR REPLACE VIEW "{job.name}"."{name}" AS {rows_of_parts}')
        # Where jobs are several, the column `job` tells their rows apart.
        job_columns = [f", '{job.name}' AS job" if len(jobs) > 1 else "" for job in jobs]
        rows = (
            f'FROM "{job.name}"."{name}" SELECT *{column}'
            for job, column in zip(jobs, job_columns, strict=True)
        )
        connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS {" UNION ALL ".join(rows)}')


def create_days_view(connection: duckdb.DuckDBPyConnection, system: PartSystem) -> None:
    """Create ``stored_days``; nothing is stored yet."""
    system.put_rows(days_schema(), days_columns([]))
    connection.execute(f"CREATE VIEW {DAYS} AS FROM read_parquet('{system.protocol}://{DAYS}/*')")


def create_dump_views(
    connection: duckdb.DuckDBPyConnection, system: PartSystem, dumps: Sequence[DumpView]
) -> None:
    """Create a view for each table of a dump."""
    for table in dumps:
        system.put_parts(table.view, table.columns, table.parts)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
        connection.execute(
            f"CREATE VIEW {table.view} AS FROM read_parquet('{system.protocol}://{table.view}/*')"
        )


def _rows_of_parts(system: PartSystem, job: Job, name: str) -> str:
    """Return the query of a job's table over its part files, whose folders name the day
    or the period.
    """
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
        "period": [
            str(entry.interval) if day is None else None
            for entry, day in zip(stored, days, strict=True)
        ],
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
