"""What a query may be: one statement that reads. DuckDB's errors become errors of ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import date
from typing import Final

from cmsspark.base.errors import CmssparkError, NotAllowed, NotReady, UsageError
from cmsspark.base.text.spelling import suggestion
from cmsspark.store.separate_counts import missing_column_hint

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
                "give one SQL statement", found="none", next_step="`show tables` lists the tables"
            )
        actual = f"{len(statements)} statements"
        raise UsageError(
            "give one SQL statement", found=actual, next_step="run them one after another"
        )
    statement = statements[0]
    try:
        kind = statement.type
    except ValueError:
        # Python's DuckDB has no name for it, as for UPDATE EXTENSIONS.
        raise UsageError(
            "a query only reads",
            found=f"{' '.join(sql.split()[:2]).upper()} statement",
            next_step=f"begin it with {_ALLOWED}",
        ) from None
    if kind == duckdb.StatementType.EXPLAIN:
        body = _EXPLAIN.sub("", statement.query, count=1)
        checked(body)
    elif kind != duckdb.StatementType.SELECT:
        if kind == duckdb.StatementType.MULTI:
            next_step = "write PIVOT with its values: PIVOT … ON stream IN ('aaa', 'eos') USING sum(accesses)"
            raise UsageError(
                "a query is one statement", found="PIVOT without values", next_step=next_step
            )
        raise UsageError(
            "a query only reads",
            found=f"{str(kind).rpartition('.')[2]} statement",
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
            "a query reads the stored tables and no files",
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
