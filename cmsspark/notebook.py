"""Functions for notebooks and scripts: ``import cmsspark as cms``.

Stored tables as pandas, Arrow or Polars without a JVM (``cms.read``, ``cms.sql``,
``cms.days``), and Spark beside them (``cms.session``, ``cms.accesses``, ``cms.table``).
The store is that of the settings, or ``fout=``.

Example:
    >>> import cmsspark as cms
    >>> usage = cms.read("data_aggregation", "2026-01-15")
    >>> usage.groupby("stream")["accesses"].sum().idxmax()
    'aaa'
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from cmsspark.base.dates import parse_day
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.periods import Interval, Period, between, named, not_stored, options
from cmsspark.base.private_folders import make_private
from cmsspark.base.resources import resource
from cmsspark.cli.options import require_store
from cmsspark.engines.session import has_session
from cmsspark.engines.session import session as _session
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.settings.settings import load_settings
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS
from cmsspark.store.own_jobs import job_of_table
from cmsspark.submit.host import check_java, find_java, find_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.settings.settings import Settings

#: Kinds of tables that functions return.
Kind = Literal["pandas", "arrow", "polars"]
#: A day, a period, or the name of one: 2026-01-15, 2026-W46, 2026-11, 2026-11-01--2026-11-10.
When = str | Interval
#: The stderr of the JVM, in the state directory.
SPARK_LOG: Final = "notebook-spark.log"


def read(
    table: str,
    when: When,
    last: str | date | None = None,
    *,
    columns: Sequence[str] | str | None = None,
    to: Kind = "pandas",
    allow_missing: bool = False,
    fout: str | None = None,
    settings_file: str | None = None,
) -> Any:
    """Return the rows of a stored table for a day, for a range of days, or for a week or month.

    ``when`` is a day (``"2026-01-15"``), a week (``"2026-W03"``), a month
    (``"2026-01"``) or, with ``last``, the first day of a range. ``period_aggregation``
    is stored by period: its rows are those of exactly that period. ``columns``: one or
    some of the columns in ``schemas/tables/NAME.yaml``, where ``accesses`` and ``jobs``
    stand for the stored ``nacc``, and ``job_read_bytes`` is beside ``read_bytes``: a
    sum over all rows adds no jobs to accesses. ``to``: ``pandas``, ``arrow`` or
    ``polars``. In pandas ``day`` is a datetime, and whole numbers with nulls have the
    type Int64, so they stay exact.

    A partial day, which lacks an input, has the rows that it has: ``select * from
    stored_days where is_partial``. Raises InputMissing (66) for days that are not
    stored, unless ``allow_missing`` and some are; UsageError (2) for an unknown table
    or column.

    Example:
        >>> usage = cms.read("data_aggregation", "2026-01-15")
        >>> usage["day"].nunique(), int(usage["accesses"].min())
        (1, 1)
        >>> cms.read("partials", "2026-01-15", columns=["accesses"], to="arrow").column_names
        ['accesses']
    """
    from cmsspark.store.results import current
    from cmsspark.store.stored_columns import read_columns, separated, stored_names, table_rows

    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    job = job_of_table(table)
    name = job.name if table in job.aliases else table
    names = read_columns(name, [columns] if isinstance(columns, str) else columns)
    interval = _interval(when, last)
    files = _files(store, settings)
    chosen: list[Interval] = [interval]
    if isinstance(interval, Period) and not job.of_periods:
        stored = set(days(name, fout=store, settings_file=settings_file))
        missing = [day for day in interval.days if day not in stored]
        chosen = [day for day in interval.days if day in stored]
        _check_missing(name, store, interval, missing, chosen, allow_missing=allow_missing)
    import pyarrow as pa

    stored_columns = stored_names(name, names)
    parts = [
        table_rows(files, current(files, store, job.name, name, interval), name, stored_columns)
        for interval in chosen
    ]
    return _converted(separated(pa.concat_tables(parts), name, names), to)


def sql(
    query: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    to: Kind = "pandas",
    max_rows: int | None = None,
    max_seconds: float | None = None,
    fout: str | None = None,
    settings_file: str | None = None,
) -> Any:
    """Return the rows of an SQL query over all stored tables and days. Needs the extra
    ``cmsspark[sql]``.

    Each stored table is a view, as for ``cmsspark sql`` (``docs/sql.md``).
    ``parameters`` fill ``?`` or ``$name``. ``max_rows`` keeps the first rows. Raises
    UsageError (2) for a wrong query, InputMissing (66) for a missing store, NotReady
    (75) after ``max_seconds``.

    Example:
        >>> top = cms.sql(
        ...     "select dataset_name, sum(accesses) as accesses, sum(jobs) as jobs "
        ...     "from data_aggregation where day = ? group by 1 order by 2 desc nulls last limit 10",
        ...     ["2026-01-15"],
        ... )
        >>> list(top.columns), len(top)
        (['dataset_name', 'accesses', 'jobs'], 10)
    """
    from cmsspark.store.query.database import Database
    from cmsspark.store.stored_columns import existing_store

    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    with Database(store, files=existing_store(_files(store, settings), store)) as database:
        result = database.query(query, parameters, max_rows=max_rows, max_seconds=max_seconds)
    return _converted(result.table, to)


def days(
    table: str = "data_aggregation", *, fout: str | None = None, settings_file: str | None = None
) -> list[date]:
    """Return the stored days of a table, in order.

    Example:
        >>> cms.days()
        [datetime.date(2026, 1, 15)]
    """
    from cmsspark.store.stored_columns import days_with_table

    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    return days_with_table(_files(store, settings), store, table)


def _files(store: str, settings: Settings) -> Files:
    """Return the file system of a store. What a JVM that it takes prints goes where
    that of :func:`session` goes.
    """
    from cmsspark.store.stored_columns import open_store

    if is_local(store) or has_session():
        return open_store(store, "cmsspark notebook", settings)
    with _stderr_in(settings.state_dir / SPARK_LOG):
        return open_store(store, "cmsspark notebook", settings)


def session(app: str = "cmsspark notebook", **conf: str) -> SparkSession:
    """Return the running Spark session, or start a local one with the options that
    correct numbers depend on.

    ``app`` names the application. Other keywords are ignored where a session is running
    already. What a new JVM prints goes to ``notebook-spark.log`` in the state
    directory; errors of queries are raised as always.

    Example:
        >>> spark = cms.session()
        >>> spark.conf.get("spark.sql.session.timeZone")
        'UTC'
    """
    if has_session():
        return _session(app, **conf)
    check_java(find_java(os.environ), find_spark(os.environ), os.environ)
    settings = load_settings(None)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{resource('etc/log4j2.properties')}",
    }
    with _stderr_in(settings.state_dir / SPARK_LOG):
        return _session(app, **{**quiet, **settings.spark, **conf})


def accesses(
    day: str | date,
    *,
    root: str | None = None,
    streams: Sequence[str] | str | None = None,
    settings_file: str | None = None,
    allow_tmp: bool = False,
) -> DataFrame:
    """Return a DataFrame with one row for each access of ``day``, whether its file is
    in DBS or not.

    ``streams``: one or some of aaa, eos, cmssw and crab; without them all that have
    accesses of that day. Columns: stream, lfn (normalised), site_name, app, user
    (pseudonym), is_remote, read_bytes, cpu_seconds, wall_seconds, dataset_name and
    block_name (both null where DBS does not have the file). Records in a bin of the
    decoder (malformed, out of day, only written, without a file name) are left out.

    Raises the errors of the job ``data_aggregation``, for example InputMissing (66) for
    a day without logs, and UsageError (2) for a stream of jobs, or an unknown one.

    Example:
        >>> accesses = cms.accesses("2026-01-15", root="/data/mirror", streams=["aaa"])
        >>> accesses.where("dataset_name is not null").count() > 0
        True
        >>> sorted(accesses.columns)[:4]
        ['app', 'block_name', 'cpu_seconds', 'dataset_name']
    """
    from cmsspark.run.own_run import scan_accesses
    from cmsspark.run.request import DayRequest
    from cmsspark.sources.layout import Epochs

    settings, parsed = load_settings(settings_file), _day(day)
    epochs = Epochs.load(settings.sources, settings.where)
    streams = (
        [streams]
        if isinstance(streams, str)
        else streams or epochs.streams_of_day(parsed, ACCESS_STREAMS)
    )
    of_jobs = sorted({*streams} & {*STREAMS_OF_JOBS})
    if of_jobs:
        raise UsageError(
            f"{', '.join(of_jobs)} has jobs, and no accesses to files",
            found=f"streams: {', '.join(streams)}",
            next_step='notebook.table("dbs_condor", DAY) has its jobs by dataset, site and app',
        )
    if unknown := sorted({*streams} - {*ACCESS_STREAMS}):
        raise UsageError(
            f"there is no stream {', '.join(unknown)}",
            found=f"streams: {', '.join(ACCESS_STREAMS)}",
        )
    request = DayRequest(
        "data_aggregation",
        parsed,
        "",
        settings,
        root=root,
        streams=tuple(streams),
        allow_tmp=allow_tmp,
        refresh_dumps=True,
    )
    return scan_accesses(session(), request)


def table(
    name: str, day: str | date, *, fout: str | None = None, settings_file: str | None = None
) -> DataFrame:
    """Return the current result of a stored table for ``day``.

    The columns are those of :func:`read`. Raises InputMissing (66), which names the stored
    days, if this day is not stored, and UsageError (2) for an unknown table.

    Example:
        >>> usage = cms.table("data_aggregation", "2026-01-15", fout="/data/results")
        >>> usage.groupBy("site_tier").sum("accesses", "jobs").count() > 1
        True
    """
    from cmsspark.base.schemas import stored_table
    from cmsspark.store.part_files import check_table
    from cmsspark.store.results import current, spark_location
    from cmsspark.store.stored_columns import separated_in_spark

    spark = session()
    store = require_store(fout, load_settings(settings_file))
    files = files_for(store, spark)
    current_table = current(files, store, job_of_table(name).name, name, _day(day))
    check_table(files, current_table, name)
    read = spark.read.schema(stored_table(name).spark())
    is_csv = current_table.manifest.tables[name].format == "csv"
    path = spark_location(current_table.path)
    # Spark takes an empty text in quotes for a null, unless nulls are written in another way.
    texts = {"header": True, "escape": '"', "multiLine": True, "nullValue": "\0", "emptyValue": ""}
    checked = read.option("parquet.page.verify-checksum.enabled", True)
    rows = read.csv(path, **texts) if is_csv else checked.parquet(path)
    return separated_in_spark(rows, name)


def _interval(selected: When, last: str | date | None) -> Interval:
    """Return the day or period that is asked for. Raises UsageError (2) where ``when`` names none."""
    if last is not None:
        return between(_day(selected), _day(last))
    if isinstance(selected, Period):
        return selected
    if not isinstance(selected, str):
        return _day(selected)
    try:
        return named(selected)
    except ValueError:
        return parse_day(selected)


def _day(when: When) -> date:
    if isinstance(when, Period):
        raise UsageError(
            "a range is from a day to a day", found=str(when), next_step="leave out the last day"
        )
    if isinstance(when, date):
        # Values of a column ``day`` are timestamps of pandas.
        return when.date() if isinstance(when, datetime) else when
    return parse_day(str(when))


def _check_missing(
    table: str,
    store: str,
    period: Period,
    missing: list[date],
    intervals: list[Interval],
    *,
    allow_missing: bool,
) -> None:
    if not missing or (allow_missing and intervals):
        return
    raise InputMissing(
        not_stored(missing, period),
        where=store,
        found=f"{len(intervals)} of them",
        next_step=f"run_spark {job_of_table(table).name} {options(missing[0])}"
        + ("; or allow_missing=True" if intervals else ""),
    )


def _converted(rows: pa.Table, to: Kind) -> Any:
    """Return an Arrow table as what the caller wants. Raises UsageError (2) for another kind."""
    import pyarrow as pa

    if to == "arrow":
        return rows
    if to == "polars":
        import polars as pl

        return pl.from_arrow(rows)
    if to != "pandas":
        raise UsageError(f"to={to!r} is not known", next_step="give pandas, arrow or polars")
    import pandas as pd

    frame = rows.to_pandas(date_as_object=False)
    for field in rows.schema:
        # A column with nulls would become float, which is exact up to 2^53 only.
        if pa.types.is_int64(field.type) and rows[field.name].null_count:
            frame[field.name] = rows[field.name].to_pandas(
                types_mapper={pa.int64(): pd.Int64Dtype()}.get
            )
    return frame


@contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Let processes that start in this block write their stderr to a file, unless it
    cannot be written.
    """
    log = None
    with suppress(OSError):
        make_private(path.parent)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if log is None:
        yield
        return
    stderr = os.dup(2)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(log)
