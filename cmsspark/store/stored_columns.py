"""Columns of stored tables as Arrow, texts as dictionaries: from Parquet or CSV, from the local disk or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING

from cmsspark.base.errors import CmssparkError, InputMissing
from cmsspark.base.memory import is_shortage
from cmsspark.base.periods import Period
from cmsspark.base.schemas import Table, stored_table
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local, join
from cmsspark.settings.settings import Settings
from cmsspark.store import contents, part_checks, results
from cmsspark.store.job_index import job_of_table
from cmsspark.store.part_checks import StoredPart
from cmsspark.store.results import CurrentTable

if TYPE_CHECKING:
    import pyarrow as pa


def open_store(fout: str, app: str, settings: Settings | None = None) -> Files:
    """Return the file system of a store; one that is not on the local disk takes a small Spark session with the options
    of ``settings`` (by default those of the environment) for file systems and Kerberos.
    """
    if is_local(fout):
        return LocalFiles()
    from cmsspark.engines.session import small_session

    return files_for(fout, small_session(app, settings))


def existing_store(files: Files, store: str) -> Files:
    """Return ``files``. Raises InputMissing (66) where there is no such store, whose tables would all be empty."""
    if files.stat(store) is None:
        raise missing_store(store)
    return files


def missing_store(store: str) -> InputMissing:
    """Return the error (66) for a store that is not there."""
    next_step = "check --fout and its disk, or make a first day: run_spark data_aggregation --date DAY"
    return InputMissing(
        "there is no store", where=store, found="nothing of that name, or an empty folder", next_step=next_step
    )


def list_stored_parts(files: Files, current: CurrentTable, table: str) -> list[StoredPart | CurrentTable]:
    """Return the parts that :func:`part_rows` takes: a table's part files, or a table in CSV itself."""
    if current.manifest.tables[table].format != "parquet":
        return [current]
    return list(part_checks.stored_parts(files, current, table))


def part_rows(files: Files, part: StoredPart | CurrentTable, schema: Table, columns: Sequence[str]) -> pa.Table:
    """Return the columns of one part, or of a table in CSV. Raises DataError (65) where it cannot be read."""
    (rows,) = _read_part(files, part, schema, columns, at_once=True)
    return rows


def row_groups(
    files: Files, part: StoredPart | CurrentTable, schema: Table, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of :func:`part_rows`, a row group of Parquet at a time."""
    return _read_part(files, part, schema, columns, at_once=False)


def _read_part(
    files: Files, part: StoredPart | CurrentTable, schema: Table, columns: Sequence[str], *, at_once: bool
) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cmsspark.store.stored_rows import stored_rows, unreadable

    if isinstance(part, CurrentTable):
        expected = pa.schema([field for field in schema.arrow() if field.name in columns])
        yield pa.Table.from_pylist(list(stored_rows(part, schema)), expected)
        return
    texts = [column.name for column in schema.columns if column.type == "string" and column.name in columns]
    try:
        with (
            part_checks.open_stored(files, part) as source,
            pq.ParquetFile(source, read_dictionary=texts, page_checksum_verification=True) as file,
        ):
            if at_once:
                yield file.read(columns=list(columns)).select(list(columns))
                return
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=list(columns)).select(list(columns))
    except CmssparkError:
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        if is_shortage(error):
            raise
        raise unreadable(part, error) from None


def table_rows(files: Files, current: CurrentTable, table: str, columns: Sequence[str]) -> pa.Table:
    """Return the columns of a whole table, texts as texts."""
    import pyarrow as pa

    schema = stored_table(table)
    expected = pa.schema([schema.arrow().field(name) for name in columns])
    parts = [part_rows(files, part, schema, columns) for part in list_stored_parts(files, current, table)]
    return pa.concat_tables(
        [pa.Table.from_batches([], expected), *(part.select(list(columns)).cast(expected) for part in parts)]
    )


def stored_days(files: Files, fout: str, job: str) -> list[date]:
    """Return the days that a job has a result of, in order."""
    intervals = contents.stored_intervals(files, fout, job)
    return sorted(interval for interval in intervals if not isinstance(interval, Period))


def newest_replicas(files: Files, fout: str, until: date | None = None) -> tuple[date, CurrentTable, str]:
    """Return the newest stored day of replicas, and its table: ``dbs_phedex``, or ``dbs_rucio`` where that is newer.

    Raises InputMissing (66) where neither is stored.
    """
    tables = []
    for table in ("dbs_phedex", "dbs_rucio"):
        with suppress(InputMissing):
            tables.append((*newest(files, fout, table, until), table))
    if not tables:
        return (*newest(files, fout, "dbs_phedex", until), "dbs_phedex")
    # Of one day the first.
    return max(tables, key=lambda entry: entry[0])


def newest(files: Files, fout: str, table: str, until: date | None = None) -> tuple[date, CurrentTable]:
    """Return the newest stored day of a table, not after ``until``. Raises InputMissing (66) that says what to run."""
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
