"""SQL over a store: a DuckDB database in memory with one view a stored table. ``cmsspark.query`` has the interface."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.errors import CmssparkError, DataError, NotReady, UsageError
from cmsspark.query import cost_views, statements
from cmsspark.query.cell_values import distinct, values_of
from cmsspark.query.stored_parts import StoredInterval, StoredParts, tables
from cmsspark.schemas import Table, described_table, stored_table
from cmsspark.storage import Files, LocalFiles, is_local, local_path

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from cmsspark.query.dump_views import DumpView
    from cmsspark.query.part_system import PartSystem

#: The view of all stored days and periods.
DAYS: Final = "stored_days"
Parameters = Sequence[Any] | Mapping[str, Any]
_NEEDS_EXTRA: Final = "pip install 'cmsspark[sql]'"
_BATCH_ROWS: Final = 65_536
#: Attempts of a query whose files were pruned while it ran.
_ATTEMPTS: Final = 2


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query as an Arrow table, whether more rows were left out, and the seconds that it took.

    Sums of whole numbers have the type int64 where they fit.
    """

    table: pa.Table
    is_truncated: bool
    seconds: float

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of Python values."""
        columns = [values_of(column) for column in self.table.columns]
        return list(zip(*columns, strict=True)) if columns else []

    @property
    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


class Database:
    """SQL over the store ``fout``. See :mod:`cmsspark.query` for what it promises."""

    def __init__(
        self,
        fout: str,
        *,
        files: Files | None = None,
        is_private: bool = True,
        memory: str | None = None,
        threads: int | None = None,
        max_age_s: float = 0.0,
        dumps: Sequence[DumpView] = (),
    ) -> None:
        """``files``: the file system of the store, by default the local disk. ``is_private``: with tables that have a
        row for each person (pseudonyms). ``memory`` such as ``1GB``. ``max_age_s``: how long the list of current runs
        may be used again. ``dumps``: tables of dumps, as views beside those of the store. Raises UsageError (2) where
        DuckDB is not installed.
        """
        self.fout = fout
        self._files = files or LocalFiles()
        self._max_age_s = max_age_s
        self._tables = {name: job for name, job in tables().items() if is_private or not stored_table(name).is_private}
        self._parts = StoredParts(self._files, os.path.abspath(local_path(fout)) if is_local(fout) else fout)
        self._refreshed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._connection, self._system = _connect(self._files, memory, threads)
        self._create_views()
        for table in dumps:
            self._create_dump_view(table)

    def query(
        self,
        sql: str,
        parameters: Parameters | None = None,
        *,
        max_rows: int | None = None,
        max_seconds: float | None = None,
        max_bytes: int | None = None,
    ) -> QueryResult:
        """Run one reading statement. ``parameters`` fill ``?`` or ``$name``.

        Of more than ``max_rows`` rows the first are returned, with ``is_truncated``. Raises UsageError (2) for a wrong
        query and for rows of more than ``max_bytes``, NotAllowed (77) for one that reads files, NotReady (75) after
        ``max_seconds``, DataError (65) where a day that it needs is damaged.
        """
        statement = statements.checked(sql)
        began = time.monotonic()
        for attempt in range(_ATTEMPTS):
            names = statements.mentioned(sql, [*self._tables, DAYS, *cost_views.VIEWS])
            if any(name in cost_views.VIEWS for name in names):
                names = [*(name for name in names if name not in cost_views.VIEWS), *cost_views.TABLES]
            self.refresh(names, force=bool(attempt))
            try:
                rows, is_truncated = self._run(statement, parameters, (max_rows, max_bytes), max_seconds)
            except _FileGone as error:
                if attempt == _ATTEMPTS - 1:
                    raise error.error from None
                continue
            return QueryResult(_plain_sums(rows), is_truncated, time.monotonic() - began)
        raise AssertionError("a query ends in its last attempt")

    def refresh(self, names: Sequence[str] | None = None, *, force: bool = False) -> None:
        """Bring the views of these tables, by default of all, up to date with the store."""
        chosen = list(self._tables) if names is None or DAYS in names else [name for name in names]
        with self._lock:
            is_changed = False
            for job in dict.fromkeys(self._tables[name] for name in chosen):
                now = time.monotonic()
                if not force and now - self._refreshed.get(job.name, float("-inf")) < self._max_age_s:
                    continue
                if force:
                    self._parts.forget(job)
                if self._parts.refresh(job):
                    is_changed = True
                    for table in job.tables:
                        if table in self._tables:
                            self._system.put(stored_table(table), self._parts.of(job, table))
                self._refreshed[job.name] = now
            if is_changed or not self._system.glob(f"{DAYS}/*"):
                self._system.put_rows(days_schema(), _days_columns(list(self._all_stored())))

    def stored(self, table: str) -> list[StoredInterval]:
        """The stored days or periods of a table, oldest first, as the last refresh found them."""
        self._require(table)
        self.refresh([table])
        with self._lock:
            return self._parts.of(self._tables[table], table)

    def days(self, table: str = "data_aggregation") -> list[date]:
        """The stored days of a table, in order."""
        return [one.interval for one in self.stored(table) if isinstance(one.interval, date)]

    @property
    def tables(self) -> list[Table]:
        """The schemas of all views, ``stored_days`` last."""
        return [*(stored_table(name) for name in self._tables), days_schema()]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require(self, table: str) -> None:
        if table not in self._tables:
            raise UsageError(
                f"there is no table {table!r}", found=", ".join(self._tables), next_step="`show tables` lists them"
            )

    def _all_stored(self) -> Iterator[StoredInterval]:
        for name, job in self._tables.items():
            yield from self._parts.of(job, name)

    def _create_views(self) -> None:
        from cmsspark.query.part_system import NO_DAY

        for schema in (stored_table(name) for name in self._tables):
            self._system.put(schema, [])
            keys = ("period", "first_day", "last_day") if "period" in schema.names else ("day",)
            types = ", ".join(f"{key}: {'VARCHAR' if key == 'period' else 'DATE'}" for key in keys)
            columns = ", ".join(f'"{name}"' for name in schema.names)
            self._connection.execute(
                f"CREATE VIEW {schema.name} AS SELECT {columns} FROM read_parquet('{self._system.protocol}://"  # noqa: S608
                f"{schema.name}/*', hive_partitioning = true, hive_types = {{{types}}}) WHERE {keys[-1]} > '{NO_DAY}'"
            )
        for name, query in cost_views.VIEWS.items():
            self._connection.execute(f"CREATE VIEW {name} AS {query}")
        self._system.put_rows(days_schema(), _days_columns([]))
        self._connection.execute(f"CREATE VIEW {DAYS} AS FROM read_parquet('{self._system.protocol}://{DAYS}/*')")

    def _create_dump_view(self, table: DumpView) -> None:
        self._system.put_parts(table.view, table.columns, table.parts)
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {table.schema}")
        self._connection.execute(
            f"CREATE VIEW {table.view} AS FROM read_parquet('{self._system.protocol}://{table.view}/*')"
        )

    def _run(
        self,
        statement: str,
        parameters: Parameters | None,
        limits: tuple[int | None, int | None],
        max_seconds: float | None,
    ) -> tuple[pa.Table, bool]:
        import duckdb
        import pyarrow as pa

        with self._connection.cursor() as cursor, _time_limit(cursor, max_seconds) as is_over:
            try:
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                # A relation gives its rows as they are made: what is left out is never in memory.
                reader = cursor.sql(statement, params=parameters or None).to_arrow_reader(_BATCH_ROWS)
                batches, is_truncated = _limited(reader, *limits)
                return pa.Table.from_batches(batches, reader.schema), is_truncated
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                if is_over():
                    raise NotReady(
                        f"the query took longer than {max_seconds:g} s",
                        next_step="ask for fewer days or columns, or allow more time",
                    ) from None
                raise self._error_of(error, statement) from None

    def _error_of(self, error: Exception, statement: str) -> Exception:
        """The error with what the store knows: the damaged part, or that a file is gone."""
        import duckdb

        text = str(error)
        for name, failure in list(self._system.failures.items()):
            if name in text:
                self._system.failures.pop(name, None)
                is_gone = failure.where is not None and "No such file" in str(failure.found)
                return _FileGone(failure) if is_gone else failure
        part = self._system.part_in(text)
        if part is None and not isinstance(error, statements.wrong_query()):
            part = self._system.damaged_part()
        if part is not None:
            return DataError(
                "a part of the stored table cannot be read",
                where=part,
                found=" ".join(text.split())[:200],
                next_step="run the day's job again",
            )
        if isinstance(error, duckdb.InternalException | duckdb.FatalException):
            return error
        return statements.as_ours(error, statement)


class _FileGone(Exception):
    """A part file was deleted after it was listed, as a newer run replaced it and ``cmsspark prune`` removed it."""

    def __init__(self, error: CmssparkError) -> None:
        self.error = error
        super().__init__(str(error))


def _connect(files: Files, memory: str | None, threads: int | None) -> tuple[duckdb.DuckDBPyConnection, PartSystem]:
    """A database in memory that reads nothing but the file system of the parts, for good."""
    try:
        import duckdb

        from cmsspark.query.part_system import PROTOCOL, PartSystem
    except ImportError as error:
        raise UsageError(
            "SQL needs DuckDB and fsspec", found=f"{error.name} is missing", next_step=_NEEDS_EXTRA
        ) from None
    connection = duckdb.connect(
        config={
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "temp_directory": "",
            **({"memory_limit": memory} if memory else {}),
            **({"threads": str(threads)} if threads else {}),
        }
    )
    system = PartSystem(files)
    connection.register_filesystem(system)
    connection.execute(f"SET allowed_directories = ['{PROTOCOL}://']")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection, system


@contextmanager
def _time_limit(cursor: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[Any]:
    """Interrupt the cursor's query after ``seconds``; yields a function that says whether it was."""
    over = threading.Event()

    def interrupt() -> None:
        over.set()
        with suppress(Exception):
            cursor.interrupt()

    timer = threading.Timer(seconds, interrupt) if seconds is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield over.is_set
    finally:
        if timer:
            timer.cancel()


def _limited(reader: Any, max_rows: int | None, max_bytes: int | None) -> tuple[list[pa.RecordBatch], bool]:
    batches: list[pa.RecordBatch] = []
    left, size = max_rows, 0
    for batch in reader:
        size += batch.nbytes
        if max_bytes is not None and size > max_bytes:
            raise UsageError(
                f"a result has at most {max_bytes / 1e6:,.0f} MB",
                found=f"{size / 1e6:,.0f} MB and more",
                next_step="ask for fewer rows or columns, or shorter texts",
            )
        if left is not None and batch.num_rows > left:
            batches.append(batch.slice(0, left))
            return batches, True
        batches.append(batch)
        if left is not None:
            left -= batch.num_rows
    return batches, False


def _plain_sums(rows: pa.Table) -> pa.Table:
    """``rows``, each name once; sums of whole numbers, which DuckDB makes 128 bits wide, are int64 where they fit."""
    import pyarrow as pa

    rows = rows.rename_columns(distinct(rows.column_names))
    for number, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(number, field.name, rows.column(number).cast(pa.int64()))
    return rows


def days_schema() -> Table:
    """The columns of the view ``stored_days``."""
    return described_table("schemas/views/stored_days.yaml")


def _days_columns(stored: list[StoredInterval]) -> dict[str, list[Any]]:
    """The columns of ``schemas/views/stored_days.yaml`` of all stored intervals."""
    is_day = [isinstance(one.interval, date) for one in stored]
    return {
        "table_name": [one.table for one in stored],
        "day": [one.interval if day else None for one, day in zip(stored, is_day, strict=True)],
        "period": [None if day else str(one.interval) for one, day in zip(stored, is_day, strict=True)],
        "first_day": [one.first_day for one in stored],
        "last_day": [one.last_day for one in stored],
        "run": [one.run for one in stored],
        "made_ms": [one.made_ms for one in stored],
        "row_count": [one.rows for one in stored],
        "stored_bytes": [one.bytes for one in stored],
        "is_partial": [bool(one.partial_reason) for one in stored],
        "partial_reason": [one.partial_reason or None for one in stored],
        "is_damaged": [one.fault is not None for one in stored],
    }
