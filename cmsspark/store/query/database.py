"""SQL over a store: a DuckDB database in memory with one view a stored table."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.base.errors import CmssparkError, DataError, NotAllowed, NotReady, UsageError
from cmsspark.base.schemas import Table, stored_table
from cmsspark.base.text.spelling import suggestion
from cmsspark.filesystems.storage import Files, LocalFiles, is_local, local_path
from cmsspark.store.query import table_views
from cmsspark.store.query.cell_values import distinct, to_values
from cmsspark.store.query.stored_parts import StoredInterval, StoredParts, tables
from cmsspark.store.query.table_views import (
    DAYS,
    TableViews,
    create_days_view,
    create_dump_views,
    days_columns,
    days_schema,
    description,
    folder_name,
    view_schema,
)
from cmsspark.store.stored_columns import missing_column_hint, missing_store, read_schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from cmsspark.store.query.table_views import DumpView


# Limits of a query: how long it may take, and how much of its result is read.


@contextmanager
def time_limit(cursor: duckdb.DuckDBPyConnection, seconds: float | None) -> Iterator[Any]:
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


def limited(
    reader: Any, max_rows: int | None, max_bytes: int | None
) -> tuple[list[pa.RecordBatch], bool]:
    """Return the batches of the first rows, and whether there are more. Raises
    UsageError (2) over ``max_bytes``.
    """
    batches: list[pa.RecordBatch] = []
    remaining, size = max_rows, 0
    for batch in reader:
        size += batch.nbytes
        if max_bytes is not None and size > max_bytes:
            raise UsageError(
                f"the result is larger than {max_bytes / 1e6:,.0f} MB",
                found=f"{size / 1e6:,.0f} MB and more",
                next_step="ask for fewer rows or columns, or shorter texts",
            )
        if remaining is not None and batch.num_rows > remaining:
            batches.append(batch.slice(0, remaining))
            return batches, True
        batches.append(batch)
        if remaining is not None:
            remaining -= batch.num_rows
    return batches, False


# What a query may be: one statement that reads. DuckDB's errors become errors of ours.

_EXPLAIN: Final = re.compile(r"\s*explain(\s+analyze\b|\s*\([^)]*\))?", re.IGNORECASE)
_WORD: Final = re.compile(r"[a-z_][a-z_0-9]*")
#: Functions whose argument names a table in an expression.
_INDIRECT: Final = frozenset(
    {"query", "query_table", "show", "describe", "tables", "information_schema"}
)
#: How tables and functions of DuckDB begin that list tables.
_CATALOGUES: Final = ("duckdb_", "pg_", "pragma_", "sqlite_")
#: Texts of errors for what is no day, and for tables that do not exist; digits that may be a day.
_OF_DAYS: Final = re.compile(r"date field|-> DATE\)")
_NO_TABLE: Final = re.compile(r"Table with name (\S+) does not exist")
_NO_COLUMN: Final = re.compile(r'column (?:named )?"(\w+)"')
_DIGITS: Final = re.compile(r"(?<!\d)\d{8}(?!\d)")
_ALLOWED: Final = "SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW TABLES or EXPLAIN"


def checked(sql: str) -> str:
    """Return the one reading statement in ``sql``. Raises UsageError (2) for anything else.

    Example:
        >>> checked("select 1;")
        'select 1;'
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise as_ours(error, sql) from None
    if len(statements) != 1:
        if not statements:
            raise UsageError(
                "there is no SQL statement", next_step="`show tables` lists the tables"
            )
        actual = f"{len(statements)} statements"
        raise UsageError(
            "there are several SQL statements",
            found=actual,
            next_step="run them one after another",
        )
    statement = statements[0]
    try:
        kind = statement.type
    except ValueError:
        # Python's DuckDB has no name for it, as for UPDATE EXTENSIONS.
        raise UsageError(
            f"{' '.join(sql.split()[:2]).upper()} is not allowed: queries only read",
            next_step=f"begin it with {_ALLOWED}",
        ) from None
    if kind == duckdb.StatementType.EXPLAIN:
        body = _EXPLAIN.sub("", statement.query, count=1)
        checked(body)
    elif kind != duckdb.StatementType.SELECT:
        if kind == duckdb.StatementType.MULTI:
            next_step = "write PIVOT … ON stream IN ('aaa', 'eos') USING sum(accesses)"
            raise UsageError("PIVOT needs its values here", next_step=next_step)
        raise UsageError(
            f"{str(kind).rpartition('.')[2]} is not allowed: queries only read",
            next_step=f"begin it with {_ALLOWED}",
        )
    return str(statement.query)


def mentioned(sql: str, names: Iterable[str]) -> list[str]:
    """Return those of the table ``names`` that a query may read: all of them where it
    names tables indirectly.

    Example:
        >>> mentioned("select max(day) from partials", ["partials", "condor_ids"]), mentioned("select 1", ["partials"])
        (['partials'], [])
    """
    words = set(_WORD.findall(sql.lower()))
    named = [name for name in names if name in words]
    is_indirect = bool(words & _INDIRECT) or any(word.startswith(_CATALOGUES) for word in words)
    return list(names) if is_indirect or (not named and "from" in words) else named


def wrong_query() -> tuple[type[Exception], ...]:
    """Return DuckDB's errors that only a query causes, and no file."""
    import duckdb

    return (
        *(
            duckdb.ParserException,
            duckdb.BinderException,
            duckdb.CatalogException,
            duckdb.ConversionException,
        ),
        *(duckdb.OutOfRangeException, duckdb.PermissionException, duckdb.InterruptException),
        *(duckdb.OutOfMemoryException, duckdb.TransactionException),
    )


def as_ours(error: Exception, sql: str = "") -> CmssparkError:
    """Return the error of a query. The error of a damaged store is not made here."""
    import duckdb

    text = (
        _our_suggestion(str(error)) if isinstance(error, duckdb.CatalogException) else str(error)
    )
    lines = text.strip().splitlines() or [type(error).__name__]
    first = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", lines[0])
    at = (
        "\n".join(["", *(f"    {line}" for line in lines[1:] if line.strip())])
        if len(lines) > 1
        else ""
    )
    if isinstance(error, duckdb.PermissionException):
        return NotAllowed(
            "the query names a file: queries read stored tables only",
            found=first,
            next_step="`show tables` lists them",
        )
    if isinstance(error, duckdb.InterruptException):
        return NotReady(
            "the query was interrupted",
            next_step="ask for fewer days or columns, then run it again",
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageError(
            "the query needs more memory than it may use",
            found=first,
            next_step="ask for fewer days",
        )
    if isinstance(error, duckdb.CatalogException):
        return UsageError(
            "the query cannot be run", found=first + at, next_step="`show tables` lists the tables"
        )
    if _OF_DAYS.search(first):
        return UsageError(
            "the query cannot be run", found=first + at, next_step=_day_literal(first + at)
        )
    if isinstance(error, duckdb.BinderException):
        missing = _NO_COLUMN.search(first)
        hint = missing_column_hint(missing[1].lower()) if missing else None
        return UsageError(
            "the query cannot be run",
            found=first + at,
            next_step=hint or "`describe TABLE` lists its columns",
        )
    return UsageError("the query cannot be run", found=first + at, next_step="see docs/sql.md")


def _our_suggestion(text: str) -> str:
    """Return the text of an error with a table of ours as its suggestion: DuckDB has
    tables of its own, too.
    """
    missing = _NO_TABLE.search(text)
    if missing is None:
        return text
    from cmsspark.store.query.stored_parts import tables

    hint = suggestion(missing[1], [*tables(), "stored_days"])
    lines = [line for line in text.splitlines() if not line.startswith("Did you mean")]
    return "\n".join([lines[0], *([hint[0].upper() + hint[1:]] if hint else []), *lines[1:]])


def _day_literal(text: str) -> str:
    """Return how the day of a query that cannot be run is written."""
    digits = _DIGITS.search(text)
    with contextlib.suppress(ValueError):
        day = date.fromisoformat(digits[0]) if digits else None
        if day:
            return f"write the day as '{day}'"
    return "write days as '2026-01-15'; the newest is (SELECT max(day) FROM TABLE)"


Parameters = Sequence[Any] | Mapping[str, Any]
_NEEDS_EXTRA: Final = "pip install 'cmsspark[sql]'"
_BATCH_ROWS: Final = 65_536
#: Attempts of a query whose files were pruned while it ran.
_ATTEMPTS: Final = 2
#: What DuckDB says of a table that it does not know, in small letters.
_UNKNOWN_TABLE: Final = re.compile(r"table with name (\w+) does not exist")


class QueryResult(msgspec.Struct, frozen=True):
    """The rows of a query as an Arrow table, whether more rows were left out, and the
    seconds that it took.

    Sums of whole numbers have the type int64 where they fit. ``note``: what a described
    table means, and its days.
    """

    table: pa.Table
    is_truncated: bool
    seconds: float
    note: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples of Python values."""
        columns = [to_values(column) for column in self.table.columns]
        return list(zip(*columns, strict=True)) if columns else []

    @property
    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


class Database:
    """SQL over the store ``fout``. See :mod:`cmsspark.store.query` for what it promises."""

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
        """``files``: the file system of the store, by default the local disk.
        ``is_private``: with tables that have a row for each person (pseudonyms).
        ``memory`` such as ``1GB``. ``max_age_s``: how long the list of current runs may
        be used again. ``dumps``: tables of dumps, as views beside those of the store.
        Raises UsageError (2) if DuckDB is not installed.
        """
        self.fout = fout
        self._files = files or LocalFiles()
        self._max_age_s = max_age_s
        self._jobs_by_table = {
            name: jobs
            for name, jobs in tables().items()
            if is_private or not stored_table(name).is_private
        }
        self._parts = StoredParts(
            self._files, os.path.abspath(local_path(fout)) if is_local(fout) else fout
        )
        self._is_store_seen = False
        self._refreshed: dict[str, float] = {}
        self._lock = threading.Lock()
        # A database in memory that reads nothing but the file system of the parts, for
        # good.
        try:
            import duckdb

            from cmsspark.store.query.part_system import PROTOCOL, PartSystem
        except ImportError as error:
            raise UsageError(
                "SQL needs DuckDB and fsspec",
                found=f"{error.name} is missing",
                next_step=_NEEDS_EXTRA,
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
        system = PartSystem(self._files)
        connection.register_filesystem(system)
        connection.execute(f"SET allowed_directories = ['{PROTOCOL}://']")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        self._connection, self._system = connection, system
        self._views = TableViews(self._system, self._jobs_by_table)
        create_days_view(self._connection, self._system)
        create_dump_views(self._connection, self._system, dumps)

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

        Of more than ``max_rows`` rows the first are returned, with ``is_truncated``.
        Raises UsageError (2) for a wrong query and for rows of more than ``max_bytes``,
        NotAllowed (77) for one that reads files, NotReady (75) after ``max_seconds``,
        DataError (65) where a day that it needs is damaged, InputMissing (66) where the
        store is gone.
        """
        began = time.monotonic()
        if described := description(sql, lambda: self.views, self.stored_by_view):
            rows, note = described
            return QueryResult(
                rows.slice(0, max_rows),
                rows.num_rows > (max_rows or rows.num_rows),
                time.monotonic() - began,
                note,
            )
        statement = checked(sql)
        for attempt in range(_ATTEMPTS):
            names = mentioned(sql, [*self._jobs_by_table, DAYS, *table_views.VIEWS])
            views = [name for name in names if name in table_views.VIEWS]
            tables = [table for name in views for table in table_views.TABLES[name]]
            names = list(dict.fromkeys([*(name for name in names if name not in views), *tables]))
            with self._lock, self._connection.cursor() as cursor:
                self._views.create(cursor, [*names, *views])
            self.refresh(names, force=bool(attempt))
            try:
                rows, is_truncated = self._run(
                    statement, parameters, (max_rows, max_bytes), max_seconds
                )
            except _FileGone as error:
                if attempt == _ATTEMPTS - 1:
                    raise error.error from None
                continue
            return QueryResult(_plain_sums(rows), is_truncated, time.monotonic() - began)
        raise AssertionError("a query ends in its last attempt")

    def refresh(self, names: Sequence[str] | None = None, *, force: bool = False) -> None:
        """Bring the views of these tables, by default of all, up to date with the store.

        Raises InputMissing (66) if the store was there before and is gone, as on a
        disk that was unmounted.
        """
        chosen = self._jobs_by_table if names is None or DAYS in names else names
        with self._lock:
            # Raise InputMissing (66) where the store is gone: without this its tables
            # would just be empty.
            fout = self._parts.fout
            if not self._is_store_seen:
                self._is_store_seen = self._files.stat(fout) is not None and bool(
                    self._files.list_dir(fout)
                )
            elif self._files.stat(fout) is None or not self._files.list_dir(fout):
                raise missing_store(fout)
            is_changed = False
            for job in dict.fromkeys(job for name in chosen for job in self._jobs_by_table[name]):
                now = time.monotonic()
                if (
                    not force
                    and now - self._refreshed.get(job.name, float("-inf")) < self._max_age_s
                ):
                    continue
                if force:
                    self._parts.forget(job)
                if self._parts.refresh(job):
                    is_changed = True
                    for table in job.tables:
                        if table in self._jobs_by_table:
                            intervals = self._parts.intervals(job, table)
                            self._system.put(
                                folder_name(job, table), stored_table(table), intervals
                            )
                self._refreshed[job.name] = now
            if is_changed:
                stored = [
                    interval for name in self._jobs_by_table for interval in self._intervals(name)
                ]
                self._system.put_rows(days_schema(), days_columns(stored))

    def stored(self, table: str) -> list[StoredInterval]:
        """Return the stored days or periods of a table, of all jobs or of that in
        ``JOB.TABLE``, oldest first.
        """
        name = table.rpartition(".")[2]
        if name not in self._jobs_by_table:
            present = ", ".join(self._jobs_by_table)
            raise UsageError(
                f"there is no table {name!r}", found=present, next_step="`show tables` lists them"
            )
        return self.stored_by_view([table])[table]

    def stored_by_view(self, views: Sequence[str]) -> dict[str, list[StoredInterval]]:
        """Return the stored days or periods of each of these :attr:`views`;
        ``stored_days`` has none.
        """
        tables_of = {view: table_views.TABLES.get(view, (view,)) for view in views}
        tables = [table for of_view in tables_of.values() for table in of_view]
        self.refresh([table.rpartition(".")[2] for table in tables])
        with self._lock:
            return {
                view: [
                    interval
                    for table in of_view
                    if table != DAYS
                    for interval in self._intervals(table)
                ]
                for view, of_view in tables_of.items()
            }

    def _intervals(self, view: str) -> list[StoredInterval]:
        """Return the intervals of a table, of all jobs or of that in ``JOB.TABLE``, as
        the last refresh found them.
        """
        job_name, _, table = view.rpartition(".")
        jobs = [job for job in self._jobs_by_table[table] if job_name in ("", job.name)]
        return [interval for job in jobs for interval in self._parts.intervals(job, table)]

    def days(self, table: str = "data_aggregation") -> list[date]:
        """Return the stored days of a table, in order."""
        return [entry.interval for entry in self.stored(table) if isinstance(entry.interval, date)]

    def newest(self, tables: Sequence[str]) -> tuple[date, str] | None:
        """Return the newest stored day of tables of one kind, and its table, of one day
        the first; None without any.
        """
        stored = [(days[-1], table) for table in tables if (days := self.days(table))]
        return max(stored, key=lambda entry: entry[0], default=None)

    @property
    def tables(self) -> list[Table]:
        """The schemas of all tables as views have them, ``stored_days`` last."""
        return [
            *(view_schema(name, jobs) for name, jobs in self._jobs_by_table.items()),
            days_schema(),
        ]

    @property
    def views(self) -> dict[str, Table]:
        """The schemas of all views by their names, ``TABLE``, ``JOB.TABLE`` and those of
        efficiency.
        """
        of_jobs = {
            folder_name(job, name): read_schema(name)
            for name, jobs in self._jobs_by_table.items()
            for job in jobs
        }
        of_views = [*self.tables, *table_views.view_schemas()]
        return {**{schema.name: schema for schema in of_views}, **of_jobs}

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        statement: str,
        parameters: Parameters | None,
        limits: tuple[int | None, int | None],
        max_seconds: float | None,
    ) -> tuple[pa.Table, bool]:
        import duckdb
        import pyarrow as pa

        with self._connection.cursor() as cursor, time_limit(cursor, max_seconds) as is_over:
            try:
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                # A relation gives its rows as they are made: what is left out is never in memory.
                reader = cursor.sql(statement, params=parameters or None).to_arrow_reader(
                    _BATCH_ROWS
                )
                batches, is_truncated = limited(reader, *limits)
                return pa.Table.from_batches(batches, reader.schema), is_truncated
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                if is_over():
                    raise NotReady(
                        f"the query took longer than {max_seconds:g} s",
                        next_step="ask for fewer days or columns, or allow more time",
                    ) from None
                raise self._convert_error(error, statement) from None

    def _convert_error(self, error: Exception, statement: str) -> Exception:
        """Return the error with what the store knows: the damaged part, or that a file is gone."""
        import duckdb

        text = str(error)
        for name, failure in list(self._system.failures.items()):
            if name in text:
                self._system.failures.pop(name, None)
                is_gone = failure.where is not None and "No such file" in str(failure.found)
                return _FileGone(failure) if is_gone else failure
        part = self._system.part_in(text)
        if part is None and not isinstance(error, wrong_query()):
            part = self._system.damaged_part()
        if part is not None:
            return DataError(
                "a part of the stored table cannot be read",
                where=part.path,
                found=" ".join(text.split())[:200],
                next_step=part.command,
            )
        if isinstance(error, duckdb.InternalException | duckdb.FatalException):
            return error
        unknown = _UNKNOWN_TABLE.search(text.lower())
        if unknown and unknown[1] in tables().keys() - self._jobs_by_table.keys():
            return UsageError(
                f"{unknown[1]} has a row for each person and is left out here",
                next_step="data_aggregation has the sums without people; cmsspark sql reads all tables of a store",
            )
        return as_ours(error, statement)


class _FileGone(Exception):
    """A part file was deleted after it was listed, as a newer run replaced it and
    ``cmsspark prune`` removed it.
    """

    def __init__(self, error: CmssparkError) -> None:
        self.error = error
        super().__init__(str(error))


def _plain_sums(rows: pa.Table) -> pa.Table:
    """Return ``rows``, each name once; sums of whole numbers, of 128 bits in DuckDB,
    are int64 where they fit.
    """
    import pyarrow as pa

    rows = rows.rename_columns(distinct(rows.column_names))
    for number, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(number, field.name, rows.column(number).cast(pa.int64()))
    return rows
