"""Runs a job of a user: fixes what it reads, calls its function, checks what it returns,
stores it. Processes of this host run it where the inputs allow it, otherwise Spark.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from cmsspark.base.errors import CmssparkError, DataError, UsageError
from cmsspark.base.periods import Interval, Period, start_ms
from cmsspark.base.reporting import interruptible
from cmsspark.base.schemas import Column, Table
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import reconciliation
from cmsspark.counting.crab_rows import merge_rows
from cmsspark.counting.folded_accesses import Fold, split_folded, to_arrow
from cmsspark.counting.merge import merge
from cmsspark.engines.broadcast_files import ship
from cmsspark.engines.job_work import JobTables
from cmsspark.engines.names import PROCESSES, SPARK
from cmsspark.engines.scan import scan
from cmsspark.engines.tasks import TaskContext, pack_tasks
from cmsspark.engines.worker_pool import TASK_BYTES, cores
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.run import day_result, local
from cmsspark.run.catalogue_snapshots import open_snapshots
from cmsspark.run.inputs import resolve
from cmsspark.run.job_run import JobRun, begin
from cmsspark.run.log_day import LogDayRun, open_day_snapshots, stream_files
from cmsspark.run.own_inputs import (
    Accesses,
    DumpTable,
    Fixed,
    Folder,
    JobFunction,
    OwnRequest,
    Stored,
    find_stored,
    function_module,
    list_files,
    read_dump_table,
    read_folder,
    read_stored,
)
from cmsspark.run.provenance import check_unchanged, dumps_summary, input_summary, versions
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.run.run_context import RunContext, running
from cmsspark.settings import pseudonyms
from cmsspark.sources import own_streams
from cmsspark.sources.folders import Layout
from cmsspark.sources.reader import Reader
from cmsspark.sources.registry import STREAMS_OF_JOB_ROWS
from cmsspark.sources.rses import load_storage_sites
from cmsspark.store import own_jobs
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.settings.settings import Settings
    from cmsspark.store.staged_runs import StagedRun


_BLOCK, _BLOCK_ID = "block_name", "block_id"
_SHOWN: Final = 80


def run_day(
    declared: JobFunction, request: OwnRequest, log: Callable[[str], None] | None = None
) -> CurrentTable:
    """Run a job for a day and store its table; on any failure the previous result stays.

    Raises SettingsError (78) for what the function raises, DataError (65) for rows that
    are not as declared, and the errors of the built-in jobs.
    """
    reconciliation.parse_tolerances(request.max_malformed, request.streams)
    with interruptible(), begin(request, log) as job_run:
        if job_run.engine == PROCESSES:
            done = OwnRun(
                declared, request.day, request.settings, request.fout, job_run.run_context,
                LocalFiles(), request.own_options, request, job_run,
            ).store()  # fmt: skip
        else:
            spark = _session(declared)
            files = LocalFiles() if job_run.is_local else files_for("hdfs://", spark)
            job_run.run_context.lock(files)
            done = OwnRun(
                declared, request.day, request.settings, request.fout, job_run.run_context,
                files, request.own_options, request, job_run, spark,
            ).store()  # fmt: skip
        job_run.run_context.manifest = done.manifest
        return done


def run_period(
    declared: JobFunction,
    period: Period,
    fout: str,
    settings: Settings,
    options: Mapping[str, Any],
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> CurrentTable:
    """Run a job for a period, as :func:`run_day`."""
    with interruptible(), running(settings, fout, declared.name, period, log) as run_context:
        spark = _session(declared) if declared.needs_spark else None
        files = open_store(fout, f"cmsspark {declared.name}", settings)
        run_context.lock(files)
        own_run = OwnRun(
            declared, period, settings, fout, run_context, files, options, spark=spark
        )
        own_run.allow_missing = allow_missing
        done = own_run.store()
        run_context.manifest = done.manifest
        return done


def _session(declared: JobFunction) -> SparkSession:
    from cmsspark.engines.session import session

    spark = session(f"cmsspark {declared.name}")
    module = function_module(declared)
    file = str(getattr(module, "__file__", ""))
    if module is not None and own_jobs.find_source(file, ""):
        # Workers do not have the file, nor what lies beside it.
        from pyspark import cloudpickle

        paths = own_jobs.modules_beside(file)
        for name, loaded in list(sys.modules.items()):
            path = str(getattr(loaded, "__file__", ""))
            if path == file or path in paths or str(Path(path).parent) in paths:
                cloudpickle.register_pickle_by_value(sys.modules[name])
    return spark


class OwnRun(msgspec.Struct):
    """A run of a job for a day or a period. ``request`` and ``job_run``: of a day."""

    declared: JobFunction
    interval: Interval
    settings: Settings
    fout: str
    run_context: RunContext
    files: Files
    options: Mapping[str, Any]
    request: OwnRequest | None = None
    job_run: JobRun | None = None
    spark: SparkSession | None = None
    allow_missing: bool = False
    fixed: Fixed = msgspec.field(default_factory=Fixed)

    def store(self) -> CurrentTable:
        """Read, call, check and store."""
        # Fix what is read beside accesses.
        declared, fixed = self.declared, self.fixed
        if declared.dump_tables:
            assert self.job_run is not None and isinstance(self.interval, date)
            dumps = declared.choose_dumps(self.files, self.job_run.layout, self.interval)
            fixed.dumps = {dump.kind: dump for dump in dumps}
        for name, read in declared.reads.items():
            if isinstance(read, Stored):
                fixed.stored[name] = find_stored(
                    self.files, self.fout, read, self.interval,
                    allow_missing=self.allow_missing, fixed=fixed,
                )  # fmt: skip
            elif isinstance(read, Folder):
                module_file = getattr(function_module(self.declared), "__file__", None)
                fixed.files[name] = list_files(
                    self.files,
                    read,
                    self.interval,
                    Path(module_file).absolute().parent if module_file else Path.cwd(),
                )
        if self.declared.accesses is not None:
            return self._store_with_accesses(self.declared.accesses)
        with self.run_context.staged(self.files) as staged:
            rows = self._write(staged, self._frames({}))
            return self._commit(staged, rows)

    def _frames(self, accesses: Mapping[str, pa.Table | DataFrame]) -> dict[str, Any]:
        """Return all inputs as the job takes them. Raises DataError (65)."""
        tables: dict[str, Any] = dict(accesses)
        for name, read in self.declared.reads.items():
            if isinstance(read, DumpTable):
                dump = self.fixed.dumps[read.kind]
                tables[name] = (
                    self._dump_in_spark(read)
                    if self.spark is not None and read.kind != "rucio"
                    and self.declared.frames == "spark"
                    else read_dump_table(self.files, dump, read)
                )  # fmt: skip
            elif isinstance(read, Stored):
                tables[name] = read_stored(self.files, read, self.fixed.stored[name])
            elif isinstance(read, Folder):
                tables[name] = read_folder(name, self.files, read, self.fixed)
        return {name: self._convert(table) for name, table in tables.items()}

    def _dump_in_spark(self, read: DumpTable) -> DataFrame:
        from cmsspark.dumps.spark_transport import table_source

        assert self.spark is not None
        dump = self.fixed.dumps[read.kind]
        return table_source(self.spark, dump, read.table, tuple(read.columns)).table()

    def _convert(self, table: Any) -> Any:
        kind = self.declared.frames
        if kind == "arrow" or not hasattr(table, "schema") or not hasattr(table, "num_rows"):
            return table
        if kind == "polars":
            import polars as pl

            return pl.from_arrow(table)
        if kind == "pandas":
            import pandas as pd
            import pyarrow as pa

            integer_types = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}
            frame = table.to_pandas(date_as_object=False)
            for column in table.schema:
                # A column with nulls would become float, which is exact up to 2^53 only.
                if column.type in integer_types and table[column.name].null_count:
                    frame[column.name] = table[column.name].to_pandas(
                        types_mapper=integer_types.get
                    )
            return frame
        from cmsspark.dumps.spark_transport import send_table

        assert self.spark is not None
        kinds = {
            "string": "string",
            "int64": "long",
            "int32": "int",
            "double": "double",
            "date32[day]": "date",
            "bool": "boolean",
        }
        return send_table(
            self.spark,
            table,
            Table(
                "", "", tuple(Column(part.name, kinds[str(part.type)]) for part in table.schema)
            ),
        )

    def _call(self, frames: Mapping[str, Any]) -> Any:
        """Return what the function returns. Raises SettingsError (78) for what it raises."""
        arguments = self.declared.arguments(self.interval, frames)
        try:
            return self.declared.function(**arguments, **self._own_options())
        except CmssparkError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, Exception) and type(error).__module__.startswith("py4j"):
                from cmsspark.engines.session import unwrap_cause

                cause = unwrap_cause(error)
                if isinstance(cause, CmssparkError):
                    raise cause from None
            raise own_jobs.broken(error, self.declared.where.rpartition(", line ")[0]) from error

    def _own_options(self) -> dict[str, Any]:
        return {name: self.options[name] for name in self.declared.options if name in self.options}

    def _write(self, staged: StagedRun, frames: Mapping[str, Any]) -> int:
        """Call the function, check its rows, and write them; return their number."""
        where = {
            name: read.path
            for name, read in self.declared.reads.items()
            if isinstance(read, Folder)
        }
        self.fixed.check_records(where)
        returned = self._call(frames)
        table = self.declared.table
        if hasattr(returned, "sparkSession"):
            with self._naming_the_job():
                rows = checked_in_spark(returned, table, self.interval)
            fmt = self.request.fmt if self.request is not None else "parquet"
            return staged.write(rows, table.name, fmt)
        with self._naming_the_job():
            checked = checked_rows(returned, table, self.interval)
        if self.request is not None and self.request.fmt != "parquet":
            from cmsspark.dumps.spark_transport import send_table

            assert self.spark is not None
            return staged.write(send_table(self.spark, checked, table), table.name, "csv")
        return staged.write_arrow(checked, table.name)

    @contextmanager
    def _naming_the_job(self) -> Iterator[None]:
        """Errors of the rows that the function returned say in which file it is."""
        try:
            yield
        except DataError as error:
            raise error.with_parts(where=self.declared.where) from None

    def _entries(self) -> dict[str, Any]:
        """Return entries of the manifest that each run of a user's job has."""
        file = self.declared.where.rpartition(", line ")[0]
        content = Path(file).read_bytes() if Path(file).is_file() else b""
        return {
            "job_file": file,
            "job_sha256": hashlib.sha256(content).hexdigest(),
            "options": {name: str(value) for name, value in self._own_options().items()},
            **({"records": self.fixed.records} if self.fixed.records else {}),
            **({"quarantine": path} if (path := self._quarantine()) else {}),
        }

    def _quarantine(self) -> str | None:
        if not self.fixed.quarantined:
            return None
        from cmsspark.counting.reconciliation import StreamBins
        from cmsspark.run.request import JobRequest

        day = self.interval.first if isinstance(self.interval, Period) else self.interval
        request = self.request or JobRequest(self.declared.name, day, self.fout, self.settings)
        bins = {name: StreamBins(malformed=1) for name, _ in self.fixed.quarantined}
        return day_result.quarantine_records(request, self.fixed.quarantined, bins)[0]

    def _commit(self, staged: StagedRun, count: int) -> CurrentTable:
        fixed, interval = self.fixed, self.interval
        fixed.check_unchanged(self.files)
        check_unchanged(self.files, fixed.dumps.values())
        warnings = [text for dump in fixed.dumps.values() for text in dump.warnings]
        warnings += fixed.partial_reasons()
        stored = next(iter(fixed.stored.values()), {})
        period = {}
        if isinstance(interval, Period):
            period = {
                "day": interval.first.isoformat(),
                "period": interval.isoformat(),
                "first_day": interval.first.isoformat(),
                "last_day": interval.last.isoformat(),
            }
        done = staged.commit(
            {
                **period,
                "dumps": dumps_summary(fixed.dumps.values()),
                "days": {
                    day.isoformat(): table.manifest.rows_run for day, table in stored.items()
                },
                "missing_days": [day.isoformat() for day in sorted(fixed.missing)],
                "inputs": fixed.entries(self.declared.reads),
                "partial": bool(fixed.partial_reasons()),
                "warnings": warnings,
                "engine": PROCESSES if self.spark is None else SPARK,
                **self._entries(),
                "versions": versions(),
                "seconds": round(self.run_context.seconds(), 1),
                "timestamp": start_ms(interval),
            }
        )
        for text in warnings:
            self.run_context.log(f"warning: {text}")
        self.run_context.log(
            f"{self.declared.name} of {interval}: {pluralize(count, 'row')} stored in {done.path}"
            f" after {self.run_context.seconds():.1f} s"
        )
        return done

    def _store_with_accesses(self, accesses: Accesses) -> CurrentTable:
        """Scan the logs, and store as a job on log streams does."""
        request, job_run = self.request, self.job_run
        assert request is not None and job_run is not None
        inputs = resolve(request, job_run.layout, self.files)
        (name,) = (name for name, read in self.declared.reads.items() if read is accesses)
        with self.run_context.staged(self.files) as staged:
            scanned = self._scan(request, inputs, accesses)
            outcome = day_result.build_outcome(request, inputs, scanned.result, scanned.report)
            outcome.manifest["pseudonym_key_id"] = scanned.key_id
            outcome.manifest["inputs"] = [
                *map(input_summary, inputs.streams),
                *self.fixed.entries(self.declared.reads),
            ]
            table = self._with_blocks(scanned.table, inputs, accesses)

            def write(run: StagedRun, _: str) -> int:
                count = self._write(run, self._frames({name: table}))
                self.fixed.check_unchanged(self.files)
                check_unchanged(self.files, self.fixed.dumps.values())
                outcome.manifest.update(
                    {key: value for key, value in self._entries().items() if key != "quarantine"}
                )
                return count

            return day_result.store_day(request, inputs, outcome, write, staged, self.run_context)

    def _scan(self, request: OwnRequest, inputs: Inputs, accesses: Accesses) -> _Scanned:
        """Return the table of accesses, and the side rows of the scan."""
        keys = tuple(_BLOCK_ID if key == _BLOCK else key for key in accesses.keys)
        fold = Fold(keys, tuple(accesses.sums))
        if accesses.map_batch is not None and accesses.merge is not None:
            file = self.declared.where.rpartition(", line ")[0]
            functions = (accesses.map_batch, accesses.merge)
            fold = Fold((), (), *(_OwnStep(function, file) for function in functions))
        if accesses.is_single:
            fold = Fold(("stream",), ("accesses",))
        tables: list[pa.Table] = []
        if self.spark is None:
            with local.worker_pool() as pool:
                opened = open_day_snapshots(request, inputs, self.run_context.log)
                context = self._context(request, inputs, opened, fold)
                if fold.is_of_groups:
                    # Compiled readers count these, several times as fast.
                    context = replace(context, fold=None)
                tasks = pack_tasks(stream_files(inputs), cores(), TASK_BYTES)
                rows = merge_rows(pool.scan(tasks, context))
                merged = merge(split_folded(rows, tables))
        else:
            if of_jobs := sorted({*request.streams} & {*STREAMS_OF_JOB_ROWS}):
                raise UsageError(
                    f"{', '.join(of_jobs)} is counted by job, for users' jobs by processes only",
                    next_step="leave out --engine spark, or name other streams in cms.Accesses",
                )
            opened = open_day_snapshots(request, inputs, self.run_context.log)
            context = self._context(request, inputs, opened, fold)
            merged = merge(split_folded(_scan_in_spark(self.spark, inputs, context), tables))
        result = local.LocalResult(
            merged, request.day, JobTables(), PROCESSES if self.spark is None else SPARK
        )
        report = asdict(opened.report) if opened.report else None
        try:
            if accesses.is_single:
                assert self.spark is not None
                table: Any = scan_accesses(self.spark, replace(request, refresh_dumps=True))
            elif self.spark is None and fold.is_of_groups:
                table = fold.of_groups(merged.by_user.as_batch())
            else:
                table = fold.finished(tables)
        except Exception as error:
            where = self.declared.where.rpartition(", line ")[0]
            raise own_jobs.broken(error, where) from error
        return _Scanned(table, result, report, context.pseudonyms.key_id)

    def _context(
        self, request: OwnRequest, inputs: Inputs, opened: Any, fold: Fold
    ) -> TaskContext:
        context = LogDayRun(request, inputs, opened, self.run_context).context()
        streams = own_streams.registered(request.streams)
        make = partial(own_streams.make_reader, streams, context.make_reader) if streams else None
        return replace(context, fold=fold, jobs=None, make_reader=make or context.make_reader)

    def _with_blocks(self, table: Any, inputs: Inputs, accesses: Accesses) -> Any:
        """Return the table with the names of blocks in place of their ids."""
        if _BLOCK not in accesses.keys:
            return table
        import polars as pl

        read = DumpTable("dbs/BLOCKS", (_BLOCK_ID, _BLOCK))
        names = pl.from_arrow(read_dump_table(self.files, inputs.dbs, read))
        rows = pl.from_arrow(table)
        assert isinstance(names, pl.DataFrame) and isinstance(rows, pl.DataFrame)
        joined = rows.join(names.unique(_BLOCK_ID, keep="first"), _BLOCK_ID, "left")
        return joined.select([*accesses.keys, *accesses.sums]).to_arrow()


class _OwnStep(msgspec.Struct, frozen=True):
    """A function of a user that tasks call with a batch or a table."""

    function: Callable[[Any], Any]
    file: str

    def __call__(self, rows: Any) -> pa.Table:
        """Raises SettingsError (78) for what the function raises, DataError (65) where it
        returns no table.
        """
        import pyarrow as pa

        try:
            returned = self.function(rows)
        except CmssparkError:
            raise
        except (Exception, SystemExit) as error:
            raise own_jobs.broken(error, self.file) from None
        try:
            return to_arrow(returned)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{getattr(self.function, '__name__', 'the function')} returns no table",
                where=self.file,
                found=" ".join(str(error).split())[:200],
            ) from None


class _Scanned(msgspec.Struct, frozen=True):
    table: Any
    result: local.LocalResult
    report: Mapping[str, Any] | None
    key_id: str | None


def _scan_in_spark(
    spark: SparkSession, inputs: Inputs, context: TaskContext
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tasks, of which each returns few: tables, bins and notes."""
    from cmsspark.counting.pre_aggregate import COLUMNS, record_batch
    from cmsspark.engines.broadcast_files import ship
    from cmsspark.engines.scan import scan
    from cmsspark.engines.session import spark_progress, unwrap_cause

    shipped = replace(
        context,
        catalogue=ship(spark, Path(context.catalogue)) if context.catalogue else None,
        replicas=ship(spark, Path(context.replicas)) if context.replicas else None,
    )
    try:
        with spark_progress(spark, "reading logs in Spark"):
            rows = scan(spark, stream_files(inputs), shipped).collect()
    except Exception as error:
        raise unwrap_cause(error) from None
    columns = {name: [row[name] for row in rows] for name, _ in COLUMNS}
    if rows:
        yield record_batch(columns, COLUMNS)


def added_columns(interval: Interval) -> dict[str, Any]:
    """Return the values of the columns that each row of a day or a period gets."""
    if isinstance(interval, Period):
        values: dict[str, Any] = {
            "period": interval.isoformat(),
            "first_day": interval.first,
            "last_day": interval.last,
        }
    else:
        values = {"day": interval}
    return {**values, "timestamp": start_ms(interval)}


def checked_rows(returned: Any, table: Table, interval: Interval) -> pa.Table:
    """Return the rows of a function as the columns of its table have them.

    Raises DataError (65) that names column, row and value where one does not fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        rows = to_arrow(returned)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if hasattr(returned, "columns"):
            _check_names([str(name) for name in returned.columns], table, interval)
            _name_mixed_value(returned, table)
        raise DataError(
            f"the job {table.name} returns no table",
            found=" ".join(str(error).split())[:200],
            next_step="return a table of pandas, Polars or Arrow with the declared columns",
        ) from None
    names = rows.column_names
    _check_names(names, table, interval)
    added = added_columns(interval)
    columns = []
    for column in table.columns:
        kind = table.arrow().field(column.name).type
        if column.name in names:
            columns.append(_cast(rows[column.name], column, kind))
            if not column.is_signed:
                values = columns[-1]
                value = added[column.name]
                row = pc.index(pc.equal(values, pa.scalar(value, values.type)), False).as_py()
                if row >= 0:
                    raise _wrong_value(
                        column, row, values[row].as_py(), f"it is {value} in every row"
                    )
        else:
            columns.append(pa.repeat(pa.scalar(added[column.name], kind), rows.num_rows))
    checked = pa.table(columns, schema=table.arrow())
    _check_keys(checked, table)
    return checked


def _name_mixed_value(frame: Any, table: Table) -> None:
    """Raise DataError (65) for the first value of pandas that its column does not take."""
    import pyarrow as pa

    for column in table.columns:
        if column.name not in frame:
            continue
        kind = table.arrow().field(column.name).type
        for row, value in enumerate(frame[column.name].tolist()):
            try:
                pa.array([value], from_pandas=True).cast(kind)
            except (pa.ArrowException, OverflowError):
                raise _wrong_value(column, row, value, f"{column.type} is needed") from None


def _check_names(names: list[str], table: Table, interval: Interval) -> None:
    expected = [name for name in table.names if name not in added_columns(interval)]
    for problem, wrong in (
        ("returned a column that it does not declare", [n for n in names if n not in table.names]),
        ("did not return a column that it declares", [n for n in expected if n not in names]),
        ("returned a column twice", [name for name in names if names.count(name) > 1]),
    ):
        if wrong:
            raise DataError(
                f"the job {table.name} {problem}: {wrong[0]}",
                found=f"columns: {', '.join(names)}",
                next_step="correct columns= of @cms.job, or what the function returns",
            )


def _cast(values: pa.ChunkedArray, column: Column, kind: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    was_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    source = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    was_text = pa.types.is_string(source) or pa.types.is_large_string(source)
    was_text = was_text or pa.types.is_string_view(source)
    is_other = was_number != is_number and not pa.types.is_decimal(source)
    is_other = is_other or (pa.types.is_string(kind) and not was_text)
    is_other = is_other and values.num_chunks > 0 and not pa.types.is_null(source)
    try:
        if is_other:
            raise pa.ArrowInvalid("another type")
        cast = values.cast(kind)
    except pa.ArrowException:
        row = next(
            (
                number
                for number, value in enumerate(values)
                if value.is_valid and (is_other or _is_refused(value, kind))
            ),
            0,
        )
        raise _wrong_value(column, row, values[row].as_py(), f"{column.type} is needed") from None
    if not column.nullable and cast.null_count:
        row = pc.index(pc.is_null(cast), True).as_py()
        raise _wrong_value(column, row, None, "the column is declared `not null`")
    if pa.types.is_floating(kind):
        row = pc.index(pc.is_finite(cast), False).as_py()
        if row >= 0:
            raise _wrong_value(column, row, cast[row].as_py(), "a finite number is needed")
    return cast


def _is_refused(value: pa.Scalar, kind: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        pa.chunked_array([pa.array([value.as_py()], value.type)]).cast(kind)
    except pa.ArrowException:
        return True
    return False


def _wrong_value(column: Column, row: int, value: Any, rule: str) -> DataError:
    text = "null" if value is None else repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return DataError(
        f"the job returned a value that its column {column.name} does not take: {rule}",
        found=f"{shown} in row {row + 1} of column {column.name}",
        next_step="correct columns= of @cms.job, or what the function returns",
    )


def _check_keys(rows: pa.Table, table: Table) -> None:
    """Raise DataError (65) if two rows have the same keys: one document would replace
    the other.
    """
    import polars as pl

    frame = pl.from_arrow(rows.select(list(table.keys)))
    assert isinstance(frame, pl.DataFrame)
    repeated = frame.is_duplicated()
    if repeated.any():
        row = repeated.arg_true()[0]
        values = ", ".join(
            f"{name}={value!r}" for name, value in frame.row(row, named=True).items()
        )
        raise DataError(
            f"the job {table.name} returned two rows with the same keys",
            found=f"{values} in row {row + 1} and another one",
            next_step="add a column to keys= of @cms.job, or sum up the rows",
        )


def checked_in_spark(rows: DataFrame, table: Table, interval: Interval) -> DataFrame:
    """Return a DataFrame with the columns of the table, as :func:`checked_rows`."""
    from pyspark.sql import functions as F

    _check_names(rows.columns, table, interval)
    expected = {part.name: part.dataType for part in table.spark().fields}
    fits = {("int", "long"), ("float", "double"), ("short", "long"), ("date", "date")}
    for part in rows.schema.fields:
        column = next(column for column in table.columns if column.name == part.name)
        kind = part.dataType.typeName()
        kind = {"integer": "int"}.get(kind, kind)
        if kind not in (column.type, "void") and (kind, column.type) not in fits:
            raise DataError(
                f"the job returned another type than its column {part.name} has",
                found=f"{kind} where {column.type} is declared",
                next_step="cast it, or correct columns= of @cms.job",
            )
    added = added_columns(interval)
    typed = rows.select(
        *(
            (F.col(name) if name in rows.columns else F.lit(added[name])).cast(kind).alias(name)
            for name, kind in expected.items()
        )
    ).persist()
    for column in table.columns:
        if not column.nullable and (wrong := typed.where(F.col(column.name).isNull()).first()):
            raise DataError(
                f"the job returned a value that its column {column.name} does not take",
                found=f"null in the row {', '.join(f'{key}={wrong[key]!r}' for key in table.keys)}",
                next_step="correct columns= of @cms.job, or what the function returns",
            )
    repeated = typed.groupBy(*table.keys).count().where("count > 1").first()
    if repeated is not None:
        raise DataError(
            f"the job {table.name} returned two rows with the same keys",
            found=", ".join(f"{key}={repeated[key]!r}" for key in table.keys),
            next_step="add a column to keys= of @cms.job, or sum up the rows",
        )
    return typed


# Single accesses of a day as a DataFrame, for notebooks.


def scan_accesses(spark: SparkSession, request: DayRequest) -> DataFrame:
    """Return the accesses of a day with their datasets and blocks, as
    :func:`cmsspark.accesses` does.
    """
    from pyspark.sql import functions as F

    from cmsspark.dumps.spark_transport import table_source

    settings = request.settings
    files = files_for("hdfs://", spark)
    inputs = resolve(request, Layout.from_settings(settings, request.root), files)
    cache = settings.cache_dir / "catalogue"
    sites = load_storage_sites(settings.sites)
    opened = open_snapshots(
        *(files, inputs.dbs, inputs.replicas, cache), rses_file=settings.rses, sites=sites
    )
    assert opened.catalogue is not None
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE, request.day)
    catalogue = ship(spark, opened.catalogue)
    replicas = ship(spark, opened.replicas) if opened.replicas else None
    context = TaskContext(
        *(request.day, catalogue, replicas, key),
        partial(Reader, storage_sites=sites),
        single_accesses=True,
    )
    rows = scan(spark, stream_files(inputs), context)
    blocks = (
        table_source(spark, inputs.dbs, "BLOCKS", ("block_id", "block_name"))
        .table()
        .dropDuplicates(["block_id"])
    )
    return (
        rows.join(blocks, "block_id", "left")
        .withColumn("cpu_seconds", F.col("cpu_ms") / F.lit(1000.0))
        .withColumn("wall_seconds", F.col("wall_ms") / F.lit(1000.0))
        .drop("block_id", "cpu_ms", "wall_ms")
    )
