"""Rows of stored tables, as Arrow or one after another: from Parquet or CSV, from the
local disk or elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import cache
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from cmsspark.base.errors import DataError, InputMissing, UsageError, missing_pyspark
from cmsspark.base.memory import is_shortage
from cmsspark.base.periods import Period
from cmsspark.base.schemas import Column, Table, stored_table
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local, join
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store import results
from cmsspark.store.own_jobs import job_of_table
from cmsspark.store.part_files import StoredPart, open_stored, stored_parts
from cmsspark.store.results import CurrentTable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame


#: The tables with a row for each dataset at a site; of one day the first counts.
REPLICA_TABLES: Final = ("dbs_phedex", "dbs_rucio")
#: Bytes of CSV that are parsed at once: no row is longer.
_CSV_BYTES: Final = 8 * 1024 * 1024


def open_store(fout: str, app: str, settings: Settings | None = None) -> Files:
    """Return the file system of a store; one that is not on the local disk takes a
    small Spark session with the options of ``settings`` (by default those of the
    environment) for file systems and Kerberos.
    """
    if is_local(fout):
        return LocalFiles()
    require_pyspark(fout)
    from cmsspark.engines.session import small_session

    return files_for(fout, small_session(app, settings))


def require_pyspark(fout: str) -> None:
    """Raise SettingsError (78) if the store needs PySpark, which is not installed."""
    try:
        is_there = find_spec("pyspark") is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise missing_pyspark(f"a store on {fout.partition(':')[0].upper()}")


def existing_store(files: Files, store: str) -> Files:
    """Return ``files``. Raises InputMissing (66) if there is no such store, whose
    tables would all be empty.
    """
    if files.stat(store) is None:
        raise missing_store(store)
    return files


def missing_store(store: str) -> InputMissing:
    """Return the error (66) for a store that is not there."""
    next_step = (
        "check --fout and its disk, or make a first day: run_spark data_aggregation --date DAY"
    )
    return InputMissing(
        "there is no store",
        where=store,
        found="nothing of that name, or an empty folder",
        next_step=next_step,
    )


def stored_rows(current: CurrentTable, table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table's current result as dicts of plain values, in the order
    of its parts, never more than a few thousand in memory.

    Parts of a store that is not local are fetched one after another, without a Spark
    job. Raises DataError (65) if a part cannot be read.
    """
    files, names = open_store(current.path, "cmsspark"), table.names
    for part in stored_parts(files, current, table.name):
        for batch in _read_part(
            files, part, table, names, lambda file: file.iter_batches(2_000, columns=names)
        ):
            yield from batch.to_pylist()


def part_rows(files: Files, part: StoredPart, schema: Table, columns: Sequence[str]) -> pa.Table:
    """Return the columns of one part. Raises DataError (65) if it cannot be read."""
    import pyarrow as pa

    names = list(columns)

    def read(file: pq.ParquetFile) -> Iterator[pa.Table]:
        yield file.read(columns=names).select(names)

    return pa.concat_tables(_read_part(files, part, schema, names, read, _texts(schema, names)))


def row_groups(
    files: Files, part: StoredPart, schema: Table, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of :func:`part_rows`, a row group of Parquet at a time."""
    names = list(columns)

    def read(file: pq.ParquetFile) -> Iterator[pa.Table]:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns=names).select(names)

    return _read_part(files, part, schema, names, read, _texts(schema, names))


def conformed_rows(files: Files, part: StoredPart, schema: Table) -> pa.Table:
    """Return all rows of a part of another version of the schema, or in CSV; a column
    that it does not have is null.

    Raises DataError (65) if the part cannot be read so.
    """
    import pyarrow as pa

    def read(file: pq.ParquetFile) -> Iterator[pa.Table]:
        rows = file.read(
            columns=[name for name in file.schema_arrow.names if name in schema.names]
        )
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema.arrow()
        ]
        yield pa.table(columns, schema=schema.arrow())

    return pa.concat_tables(_read_part(files, part, schema, schema.names, read))


def _texts(schema: Table, columns: Sequence[str]) -> list[str]:
    return [
        column.name
        for column in schema.columns
        if column.type == "string" and column.name in columns
    ]


def _read_part(
    files: Files,
    part: StoredPart,
    schema: Table,
    columns: Sequence[str],
    read: Callable[[pq.ParquetFile], Iterable[pa.Table]],
    texts: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yield what ``read`` makes of a Parquet file, in which ``texts`` are dictionaries;
    of CSV the ``columns``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_stored(files, part) as stream:
            if part.path.endswith(".csv"):
                yield from _read_csv(stream, schema, columns)
                return
            with pq.ParquetFile(
                stream, read_dictionary=list(texts), page_checksum_verification=True
            ) as file:
                yield from read(file)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if is_shortage(error):
            raise
        raise part.unreadable(error) from None


def _read_csv(stream: IO[bytes], schema: Table, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of CSV as Parquet has them: a text in quotes that is empty is a
    text, not a null.
    """
    import pyarrow as pa
    from pyarrow import csv

    yield schema.arrow().empty_table().select(list(columns))
    if not stream.read(1):
        return
    stream.seek(0)
    parse = csv.ParseOptions(double_quote=True, newlines_in_values=True)
    convert = csv.ConvertOptions(
        column_types=schema.arrow(),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=list(columns),
    )
    with csv.open_csv(stream, csv.ReadOptions(block_size=_CSV_BYTES), parse, convert) as batches:
        yield from (pa.Table.from_batches([batch]) for batch in batches)


def table_rows(
    files: Files, current: CurrentTable, table: str, columns: Sequence[str]
) -> pa.Table:
    """Return the columns of a whole table, texts as texts."""
    import pyarrow as pa

    schema = stored_table(table)
    expected = pa.schema([schema.arrow().field(name) for name in columns])
    parts = [
        part_rows(files, part, schema, columns) for part in stored_parts(files, current, table)
    ]
    return pa.concat_tables(
        [
            pa.Table.from_batches([], expected),
            *(part.select(list(columns)).cast(expected) for part in parts),
        ]
    )


def stored_days(files: Files, fout: str, job: str) -> list[date]:
    """Return the days that a job has a result of, in order."""
    intervals = results.stored_intervals(files, fout, job)
    return sorted(interval for interval in intervals if not isinstance(interval, Period))


def days_with_table(files: Files, fout: str, table: str) -> list[date]:
    """Return the days that a table is stored for, in order: a job may have stored a day
    without one of its tables.
    """
    job = job_of_table(table)
    days = stored_days(files, fout, job.name)
    if table in (job.name, *job.aliases):
        return days
    return [day for day in days if _has_table(files, fout, job.name, table, day)]


def _has_table(files: Files, fout: str, job: str, table: str, day: date) -> bool:
    """Return whether the result of a day has a table; of a damaged one that shows when it is read."""
    try:
        return table in results.current_run(files, fout, job, day)[2].tables
    except DataError:
        return True


def newest_replicas(
    files: Files, fout: str, until: date | None = None
) -> tuple[date, CurrentTable, str]:
    """Return the newest stored day of replicas, and its table: ``dbs_phedex``, or
    ``dbs_rucio`` where that is newer.

    Raises InputMissing (66) if neither is stored.
    """
    tables = []
    for table in REPLICA_TABLES:
        with suppress(InputMissing):
            tables.append((*newest(files, fout, table, until), table))
    if not tables:
        return (*newest(files, fout, "dbs_phedex", until), "dbs_phedex")
    # Of one day the first.
    return max(tables, key=lambda entry: entry[0])


def newest(
    files: Files, fout: str, table: str, until: date | None = None
) -> tuple[date, CurrentTable]:
    """Return the newest stored day of a table, not after ``until``. Raises InputMissing
    (66) that says what to run.
    """
    job = job_of_table(table).name
    stored = stored_days(files, fout, job)
    fitting = [day for day in stored if until is None or day <= until]
    if not fitting:
        raise InputMissing(
            f"no day of {job} is stored" + (f" up to {until}" if until else ""),
            where=join(fout, job),
            found=f"days from {stored[0]} on" if stored else "nothing",
            next_step=f"run_spark {job} --date {until or 'DAY'} --fout {fout}",
        )
    return fitting[-1], results.current(files, fout, job, table, fitting[-1])


# Columns of stored tables as SQL and notebooks give them: counts of accesses and counts
# of jobs are apart.


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
