"""The views of a database: each table of each job, tables by their plain names, all
stored days, and CMSSpark's own numbers of CPU efficiency (rule 52).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.base import efficiency
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotReady
from cmsspark.base.schemas import Column, Table, described_table, input_table, stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files, unreadable
from cmsspark.sources import dumps as sources
from cmsspark.sources.formats.sqoop_csv import arrow_schema, read_table
from cmsspark.sources.layout import Layout
from cmsspark.sources.registry import DUMPS, REPLICAS
from cmsspark.store.own_jobs import Job
from cmsspark.store.part_files import open_part
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.stored_columns import read_schema, sql_expression

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from cmsspark.store.query.part_system import PartSystem


#: The tables that the views of costs are made of.
_COSTS: Final = ("job_efficiency", "period_job_efficiency")
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
#: The columns of CMSSpark's index of datasets at storage elements: what makes each of
#: dataset_rses, its type, and what it is.
_RUCIO_COLUMNS: Final = {
    "day": ("day", "date", "the day"),
    "Type": ("upper(kind)", "string", "DISK or TAPE"),
    "Dataset": ("dataset_name", "string", "the dataset"),
    "RSE": ("rse", "string", "the storage element"),
    "Tier": ("split_part(site_name, '_', 1)", "string", "T0, T1, T2 or T3"),
    "Country": ("split_part(site_name, '_', 2)", "string", "the country"),
    "RseKind": (
        "CASE WHEN regexp_matches(rse, '(Temp|temp|TEMP)$') THEN 'temp'"
        " WHEN regexp_matches(rse, '(Test|test|TEST)$') THEN 'test' ELSE 'prod' END",
        "string",
        "prod, test or temp, by the end of the name; _Test and _Temp are not in dataset_rses",
    ),
    "SizeBytes": ("bytes", "long", "bytes there"),
    "LastAccess": (
        "accessed_ms // 1000",
        "long",
        "the last traced access there, Unix seconds; CMSSpark's is that of any place, 0 for none",
    ),
    "LastCreate": ("created_ms // 1000", "long", "the newest file there, Unix seconds"),
    "IsFullyReplicated": ("coalesce(is_complete, false)", "boolean", "all valid files are there"),
    "IsLocked": (
        "CASE lock_state WHEN 'full' THEN 'FULLY' WHEN 'partial' THEN 'PARTIAL' ELSE 'DYNAMIC' END",
        "string",
        "FULLY, PARTIAL or DYNAMIC (not locked), by the locks of all accounts",
    ),
    "FilePercentage": (
        "round(100.0 * dbs_present_count / nullif(dbs_file_count, 0), 2)",
        "double",
        "how many of the valid files are there",
    ),
    "FileCount": ("file_count", "long", "files there"),
    "AccessedFileCount": ("accessed_file_count", "long", "files there with a traced access"),
    "BlockCount": ("dataset_block_count", "long", "blocks of the dataset, by Rucio"),
    "ProdLockedBlockCount": (
        "lock_blocks_production",
        "long",
        "blocks with a lock of an account of production, without sync",
    ),
    "ProdAccounts": ("production_accounts", "string", "accounts of production, joined by commas"),
    "BlockRuleIDs": (
        "production_rules",
        "string",
        "their rules, joined by commas, sync-rules for all of sync; CMSSpark's has those with a lock that is OK",
    ),
}
_RUCIO: Final = "cmsspark_rucio_datasets"
#: The views by name: jobs of a workflow at all sites, with its numbers at T1 and T2
#: beside; and by tier; datasets at storage elements.
VIEWS: Final = {
    _EFFICIENCY: _view(_KEYS, f"{_measures()}, {_T1T2}"),
    f"{_EFFICIENCY}_by_tier": _view(_KEYS | _TIER, _measures()),
    _RUCIO: "SELECT "  # noqa: S608
    + ", ".join(f'{expression} AS "{name}"' for name, (expression, _, _) in _RUCIO_COLUMNS.items())
    + " FROM dataset_rses",
}
#: The tables that each of them is made of.
TABLES: Final = {view: ("dataset_rses",) if view == _RUCIO else _COSTS for view in VIEWS}


def view_schemas() -> list[Table]:
    """Return the columns of ``VIEWS``."""
    about = "Datasets at storage elements, with the names of CMSSpark's rucio_datasets_monitoring, made from dataset_rses."
    columns = [Column(name, kind, about=text) for name, (_, kind, text) in _RUCIO_COLUMNS.items()]
    return [
        _efficiency_schema(_EFFICIENCY, _KEYS, "T1T2"),
        _efficiency_schema(f"{_EFFICIENCY}_by_tier", _KEYS | _TIER),
        Table(_RUCIO, about, tuple(columns)),
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
        """Create the views of these tables, and of others, that are not there yet."""
        for name in names:
            if name not in self._created and name not in VIEWS:
                # Create ``JOB.TABLE`` for each job that writes the table, and ``TABLE``
                # with the rows of all of them.
                jobs = self._jobs_by_table[name]
                for job in jobs:
                    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{job.name}"')
                    if not self._system.has(folder := folder_name(job, name)):
                        self._system.put(folder, stored_table(name), [])
                    rows_of_parts = _rows_of_parts(self._system, job, name)
                    connection.execute(
                        f'CREATE OR REPLACE VIEW "{job.name}"."{name}" AS {rows_of_parts}'
                    )
                # Where jobs are several, the column `job` tells their rows apart.
                job_columns = [f", '{job.name}' AS job" if len(jobs) > 1 else "" for job in jobs]
                rows = (
                    f'FROM "{job.name}"."{name}" SELECT *{column}'
                    for job, column in zip(jobs, job_columns, strict=True)
                )
                connection.execute(
                    f'CREATE OR REPLACE VIEW "{name}" AS {" UNION ALL ".join(rows)}'
                )
                self._created.add(name)
        # Made of tables.
        for name in names:
            if name not in self._created:
                connection.execute(f"CREATE OR REPLACE VIEW {name} AS {VIEWS[name]}")
                self._created.add(name)


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


# Tables of dumps in SQL: ``dbs.files``, ``phedex.replicas``, ``rucio.contents`` and
# others, read where they lie.

#: The view of the one table of PhEDEx.
_VIEWS: Final = {REPLICAS: "replicas"}
_LARGEST: Final = 2**63 - 1
#: Columns of ids.
_IDS: Final = ("ID", "RSE_ID", "RULE_ID")


class DumpView(msgspec.Struct, frozen=True):
    """A table of a dump as a view: its columns, and what makes the rows of each part file."""

    schema: str
    name: str
    columns: pa.Schema
    parts: Mapping[str, Callable[[], pa.Table]]

    @property
    def view(self) -> str:
        """The name of the view, such as ``dbs.files``."""
        return f"{self.schema}.{self.name}"


def find_tables(files: Files, layout: Layout, day: date) -> tuple[list[DumpView], list[str]]:
    """Find the tables of the dumps that belong to a day, and notes: the folder of each
    kind, or why there is none.

    Raises InputMissing (66) if there is no dump of any kind.
    """
    tables: list[DumpView] = []
    notes: list[str] = []
    for kind, choose in (
        ("dbs", partial(sources.choose_dbs_dump, tables=DUMPS["dbs"].for_streams)),
        ("phedex", sources.choose_phedex_dump),
        ("rucio", sources.choose_rucio_dump),
    ):
        try:
            dump = choose(files, layout, day)
        except (InputMissing, NotReady) as error:
            notes.append(f"{kind}: {error.problem}: {error.found}")
            continue
        notes += [f"{kind}: {dump.folder}", *dump.warnings]
        tables += _find_tables(files, dump, day)
    if not tables:
        raise InputMissing(
            f"no dump for {day}",
            found="; ".join(notes),
            next_step="give --root DIR, or the folders in the settings under sources",
        )
    return tables, notes


def _find_tables(files: Files, dump: sources.Dump, day: date) -> Iterator[DumpView]:
    """Yield the tables that are in the dump's folder, needed for streams or not."""
    for name in DUMPS[dump.kind].tables:
        listed = dump.tables.get(name)
        if listed is None:
            # A table that is not there has no view.
            with suppress(CmssparkError):
                dump_of_day = sources.dump_at(files, dump.kind, dump.folder, day, dump.day, [name])
                listed = None if dump_of_day is None else dump_of_day.tables[name]
        if listed is None:
            continue
        table = input_table(f"{dump.kind}/{name}")
        read = _rucio_part if dump.kind == "rucio" else _csv_part
        parts = {
            f"part-{number:05}.parquet": partial(read, files, table, file.path)
            for number, file in enumerate(listed)
        }
        yield DumpView(dump.kind, _VIEWS.get(name, name.lower()), _arrow(table), parts)


def _arrow(table: Table) -> pa.Schema:
    import pyarrow as pa

    schema = arrow_schema(table, table.names)
    return pa.schema([(field.name.lower(), field.type) for field in schema])


def _csv_part(files: Files, table: Table, path: str) -> pa.Table:
    """Return the rows of a part in CSV, plain or gzip. Raises DataError (65)."""
    import pyarrow as pa

    schema = arrow_schema(table, table.names)
    try:
        with open_part(files, path) as stream:
            pieces = [piece.cast(schema) for piece in read_table(stream, table, table.names, path)]
    except OSError as error:
        raise unreadable(path, error) from None
    return pa.concat_tables([schema.empty_table(), *pieces]).rename_columns(
        [name.lower() for name in table.names]
    )


def _rucio_part(files: Files, table: Table, path: str) -> pa.Table:
    """Return the rows of a part in Avro. Raises DataError (65)."""
    import fastavro
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in table.names}
    kinds = {column.name: column.type for column in table.columns}
    try:
        with open_part(files, path) as stream:
            for row in fastavro.reader(stream):
                assert isinstance(row, dict)
                values = {name.upper(): value for name, value in row.items()}
                for name, column in columns.items():
                    column.append(_plain(values.get(name), name, kinds[name]))
        arrays = {name.lower(): columns[name] for name in table.names}
        return pa.table(arrays, schema=_arrow(table))
    except CmssparkError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            "a part of a dump of Rucio cannot be read", where=path, found=reason
        ) from None


def _plain(value: Any, name: str, kind: str) -> Any:
    """Return a value of Avro as the type of its column; a number that is none is null (rule 22)."""
    if value is None:
        return None
    if name in _IDS:
        return value.hex() if isinstance(value, bytes) else str(value).replace("-", "").lower()
    if kind == "string":
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    try:
        number = int(value)
        return number if -_LARGEST - 1 <= number <= _LARGEST else None
    except (TypeError, ValueError, OverflowError):
        return None


# Answers to ``show tables`` and ``describe TABLE``: meaning and units of columns, and
# the stored days.

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
    from cmsspark.store.query.part_system import build_table

    columns: dict[str, Sequence[object]] = {
        "column_name": schema.names,
        "column_type": [_DUCKDB_TYPES[column.type] for column in schema.columns],
        "unit": [column.unit for column in schema.columns],
        "meaning": [column.about for column in schema.columns],
    }
    return build_table(_COLUMNS, columns), f"{name}: {schema.about}{stored}"


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
