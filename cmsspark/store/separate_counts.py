"""Columns of stored tables as SQL and notebooks give them: counts of accesses and
counts of jobs are apart.

Stored rows and documents have one column ``nacc``, which counts jobs in rows of a
stream of jobs. Whoever sums it over all streams adds jobs to accesses. Readers get
``accesses`` and ``jobs``, and bytes in the same way: a column is null in rows of the
other kind, so a plain sum is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from cmsspark.base.errors import UsageError
from cmsspark.base.schemas import Column, Table, stored_table
from cmsspark.sources.registry import STREAMS_OF_JOBS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class SeparateCount(NamedTuple):
    """A column that readers get: of accesses, or of jobs, from a stored column that has both."""

    stored: str
    is_of_jobs: bool
    column: Column


#: The stored columns that count accesses in some rows and jobs in others, and what
#: readers get instead.
_COUNTS: Final = tuple(
    SeparateCount(stored, is_of_jobs, Column(name, "long", about=about))
    for stored, is_of_jobs, name, about in (
        ("nacc", False, "accesses", "accesses: log records; null in rows of jobs"),
        ("nacc", True, "jobs", "jobs that ended; null in rows of accesses"),
        (
            "remote_nacc",
            False,
            "remote_nacc",
            "accesses read from another site; null where no record can say, and in rows of jobs",
        ),
        (
            "read_bytes",
            False,
            "read_bytes",
            "bytes read by accesses; null where the stream has none, and for jobs",
        ),
        ("read_bytes", True, "job_read_bytes", "bytes read by jobs; null in rows of accesses"),
    )
)
_STORED: Final = {count.stored for count in _COUNTS}
_BY_NAME: Final = {count.column.name: count for count in _COUNTS}


def is_separated(table: Table) -> bool:
    """Return whether rows of a stored table count accesses or jobs, as their stream says."""
    streams = [
        column for column in table.columns if column.name == "stream" and not column.nullable
    ]
    return bool(streams) and "nacc" in table.names


@cache
def read_schema(name: str) -> Table:
    """Return the columns of a stored table as readers get them.

    Example:
        >>> [name for name in read_schema("data_aggregation").names if "nacc" in name or name in ("accesses", "jobs")]
        ['accesses', 'jobs', 'remote_nacc']
    """
    table = stored_table(name)
    if not is_separated(table):
        return table
    columns: list[Column] = []
    for column in table.columns:
        counts = [count.column for count in _COUNTS if count.stored == column.name]
        columns += counts or [
            replace(column, about=column.about.replace("nacc", "accesses or jobs"))
        ]
    return replace(table, columns=tuple(columns))


def read_columns(name: str, columns: Sequence[str] | None) -> list[str]:
    """Return ``columns``, by default all that readers get. Raises UsageError (2) for
    those that a table has not.
    """
    names = read_schema(name).names
    unknown = [column for column in columns or () if column not in names]
    if unknown:
        raise UsageError(
            f"{name} has no column {', '.join(unknown)}",
            found=", ".join(names),
            next_step=missing_column_hint(unknown[0]) if "accesses" in names else None,
        )
    return names if columns is None else list(dict.fromkeys(columns))


def stored_names(name: str, columns: Sequence[str]) -> list[str]:
    """Return the stored columns from which :func:`separated` makes ``columns``."""
    if not is_separated(stored_table(name)):
        return list(columns)
    names = [_BY_NAME[column].stored if column in _BY_NAME else column for column in columns]
    is_stream_needed = any(column in _BY_NAME for column in columns)
    return list(dict.fromkeys([*names, *(["stream"] if is_stream_needed else [])]))


def separated(rows: pa.Table, name: str, columns: Sequence[str]) -> pa.Table:
    """Return ``columns`` of a stored table's rows, which have those of :func:`stored_names`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_separated(stored_table(name)):
        return rows.select(list(columns))
    is_job = (
        pc.is_in(rows["stream"], pa.array(STREAMS_OF_JOBS))
        if "stream" in rows.column_names
        else None
    )
    arrays = []
    for column in columns:
        count = _BY_NAME.get(column)
        values = rows[count.stored if count else column]
        if count:
            none = pa.scalar(None, values.type)
            values = (
                pc.if_else(is_job, values, none)
                if count.is_of_jobs
                else pc.if_else(is_job, none, values)
            )
        arrays.append(values)
    return pa.table(arrays, names=list(columns))


def separated_in_spark(rows: DataFrame, name: str) -> DataFrame:
    """Return the rows of a stored table with the columns of :func:`read_schema`."""
    from pyspark.sql import functions as F

    if not is_separated(stored_table(name)):
        return rows
    is_job = F.col("stream").isin(*STREAMS_OF_JOBS)
    columns = []
    for column in read_schema(name).names:
        count = _BY_NAME.get(column)
        is_own = is_job if count and count.is_of_jobs else ~is_job
        columns.append(
            F.when(is_own, F.col(count.stored)).alias(column) if count else F.col(column)
        )
    return rows.select(*columns)


def sql_expression(name: str, column: str) -> str:
    """Return DuckDB's expression of a column of :func:`read_schema` over the stored columns."""
    count = _BY_NAME.get(column) if is_separated(stored_table(name)) else None
    if count is None:
        return f'"{column}"'
    streams = ", ".join(f"'{stream}'" for stream in STREAMS_OF_JOBS)
    condition = f"stream {'IN' if count.is_of_jobs else 'NOT IN'} ({streams})"
    return f'CASE WHEN {condition} THEN {count.stored} END AS "{column}"'


def missing_column_hint(column: str) -> str | None:
    """Return the next step for a reader who asks for a stored column that is given
    apart; None for other columns.
    """
    if column not in _STORED - _BY_NAME.keys():
        return None
    names = [count.column.name for count in _COUNTS if count.stored == column]
    return f"{column} counts accesses or jobs, which are not added: ask for {' or '.join(names)}"
