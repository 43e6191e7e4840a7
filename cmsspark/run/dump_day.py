"""Jobs on dumps alone: choose the dumps, read the tables, build, store. A job adds its
``build`` and its columns.

Processes of this host run them where the dumps and the store are on its disks,
otherwise Spark. Both make the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import click
import msgspec
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.compiled import unavailable_reason
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import (
    engine_option,
    job_options,
    output_options,
    print_outcome,
    require_store,
    with_sources,
)
from cmsspark.counting.reconciliation import TRAILING_DAYS
from cmsspark.engines.names import PROCESSES, SPARK
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.run.job_run import begin
from cmsspark.run.provenance import check_unchanged, dumps_summary, versions
from cmsspark.run.request import JobRequest, NamePatterns, pattern_options
from cmsspark.run.run_context import RunContext
from cmsspark.settings.settings import load_settings
from cmsspark.sources import folders
from cmsspark.sources.folders import Dump, Layout
from cmsspark.sources.layout import REPLICAS_ROLE
from cmsspark.sources.registry import DUMPS
from cmsspark.store import results, staged_runs
from cmsspark.store.own_jobs import Job, declare

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from cmsspark.dumps.dump_frames import Frames
    from cmsspark.dumps.dump_plan import Transport
    from cmsspark.settings.settings import Settings


#: The rows of a table that was written, and entries of the manifest.
Written = tuple[int, dict[str, Any]]


class DumpJob(msgspec.Struct, frozen=True):
    """A job on dumps. ``dbs``: the columns it reads of each DBS table. ``replicas``:
    whether it reads the snapshot.

    ``build(frames, day)`` makes the rows of the job's table, which has its name, from
    the frames that
    :func:`cmsspark.dumps.dump_frames.make_frames` describes, whichever engine has read
          them. Derived columns, ``day`` and ``timestamp`` are added to them.

    ``rucio``: tables of Rucio that it reads beside those of replicas. ``rucio_frames``:
    what it reads of Rucio alone (``rse_sums``, ``last_access``, ``differences``). A job
    with these, or with ``is_of_rucio``, takes no other replicas. ``block_contents``:
    FILES are summed by block instead of by dataset, ``all`` of them or ``valid`` ones.
    ``more(files, request)``: frames from elsewhere. ``manifest(frames)``: entries of
    the manifest. ``options``: options of its command beside those of all jobs.
    ``configured``: the job for their values.
    """

    name: str
    dbs: Mapping[str, tuple[str, ...]]
    replicas: bool
    build: Callable[[Frames, date], pl.DataFrame]
    rucio: tuple[str, ...] = ()
    rucio_frames: tuple[str, ...] = ()
    is_of_rucio: bool = False
    block_contents: str = ""
    more: Callable[[Files, JobRequest], dict[str, pl.DataFrame]] | None = None
    manifest: Callable[[Frames], dict[str, Any]] | None = None
    options: tuple[Callable[[Any], Any], ...] = ()
    configured: Callable[[Mapping[str, Any], Settings], DumpJob] | None = None
    #: Whether a row is of one dataset, so that ``--patterns`` can choose.
    by_dataset: bool = False
    #: Jobs whose stored result of the same day ``more`` reads.
    after: tuple[str, ...] = ()
    #: A line for ``run_spark --list``, without a full stop.
    about: str = ""

    def declare(self, module: str) -> DumpJob:
        """Declare the job, whose table has its name, in the index of jobs; returns it.
        ``module``: the ``__name__`` of the module that declares it.
        """
        declare(
            Job(
                self.name,
                self.about,
                (self.name,),
                runs_in_processes=True,
                reads_dumps=True,
                after=self.after,
                module=module,
            ),
            self.command,
            partial(dump_request, self.name),
            self.choose,
        )
        return self

    def make(
        self,
        request: JobRequest,
        transport: Transport,
        files: Files,
        dumps: list[Dump],
        before: list[Manifest],
    ) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Return the job's table by its name, and entries of the manifest."""
        from cmsspark.run.dump_table import make_table

        more = self.more(files, request) if self.more else {}
        table, manifest = make_table(self, request, transport, files, dumps, more, before)
        return {self.name: table}, manifest

    def only(self, patterns: NamePatterns | None) -> DumpJob:
        """Return the job with the datasets that the patterns choose."""
        if patterns is None:
            return self
        return replace(self, build=lambda frames, day: patterns.select(self.build(frames, day)))

    def choose(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """Return the dumps for the day.

        Raises InputMissing (66), also where Rucio does not serve the day and the job
        needs it, and NotReady (75).
        """
        if (self.is_of_rucio or self.rucio_frames) and layout.epochs.source(
            REPLICAS_ROLE, day
        ) != "rucio":
            raise InputMissing(
                f"{self.name} of {day} needs the dumps of Rucio",
                found=layout.epochs.why(REPLICAS_ROLE, day),
                next_step="give a later day; dbs_phedex has the replicas of all days",
            )
        chosen = [folders.choose_dbs_dump(files, layout, day, self.dbs)] if self.dbs else []
        tables = (*DUMPS["rucio"].for_streams, *self.rucio)
        return (
            [*chosen, folders.choose_replica_dump(files, layout, day, tables)]
            if self.replicas
            else chosen
        )

    def command(self) -> click.Command:
        """Return the job's click command."""

        @click.command(self.name, help=f"{self.about}. Exit codes: cmsspark help exit-codes.")
        @job_options
        @output_options
        @engine_option
        def command(
            settings_file: str | None, fout: str | None, as_json: bool, **options: Any
        ) -> None:
            settings = load_settings(settings_file)
            job = self if self.configured is None else self.configured(options, settings)
            request = dump_request(self.name, options, settings, require_store(fout, settings))
            print_outcome(self.name, request.day, as_json, lambda: run(job, request))

        for option in (*self.options, *((pattern_options,) if self.by_dataset else ())):
            command = option(command)
        return command


class DayTables(Protocol):
    """The part of a job on dumps that runs: :class:`DumpJob`, or
    :class:`cmsspark.run.row_job.RowJob`.
    """

    @property
    def name(self) -> str: ...

    def only(self, patterns: NamePatterns | None) -> DayTables:
        """Return the job with the datasets that the patterns choose."""

    def choose(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """Return the dumps for the day."""

    def make(
        self,
        request: JobRequest,
        transport: Transport,
        files: Files,
        dumps: list[Dump],
        before: list[Manifest],
    ) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Return the tables by name, the job's own first, and entries of the manifest."""


def dump_request(
    job: str, options: Mapping[str, Any], settings: Settings, fout: str
) -> JobRequest:
    """Return the request that the parsed ``options`` of a job on dumps make (click's
    names and values).
    """
    return JobRequest(
        job,
        options["day"],
        fout,
        with_sources(settings, options.get("source", ())),
        options["root"],
        fmt=options["fmt"],
        engine=options["engine"],
        datasets=NamePatterns.from_options(options.get("patterns"), options.get("antipatterns")),
    )


def run(
    job: DayTables, request: JobRequest, log: Callable[[str], None] | None = None
) -> results.CurrentTable:
    """Make the job's table for the day and store it; on any failure the previous result stays.

    Raises InputMissing (66), NotReady (75), DataError (65) and OutputError (73);
    UsageError (2) where processes are requested for what only Spark does, SettingsError
    (78) where Spark is needed and has no session.
    """
    with begin(request, log) as job_run:
        # Missing local input is an error before a JVM starts.
        dumps = job.choose(LocalFiles(), job_run.layout, request.day) if job_run.is_local else []
        start = _run_by_processes if job_run.engine == PROCESSES else _run_in_spark
        done = start(
            DumpDayRun(job.only(request.datasets), request, job_run.layout, job_run.run_context),
            dumps,
        )
        job_run.run_context.manifest = done.manifest
        return done


class DumpDayRun(msgspec.Struct, frozen=True):
    """A run of a job for a day."""

    job: DayTables
    request: JobRequest
    layout: Layout
    run_context: RunContext

    def before(self, files: Files) -> list[Manifest]:
        """Return the manifests of the days before."""
        request = self.request
        return results.history(files, request.fout, request.job, request.day, TRAILING_DAYS)

    def store(
        self,
        files: Files,
        dumps: list[Dump],
        engine_name: str,
        write: Callable[[staged_runs.StagedRun], Written],
    ) -> results.CurrentTable:
        """Write the table into a new run with ``write``, and make the run current."""
        from cmsspark.dumps.rucio_scan import future_accesses

        log, name, day = self.run_context.log, self.job.name, self.request.day
        for dump in dumps:
            log(f"{dump.kind} dump: {dump.folder}")
            for text in dump.warnings:
                log(f"warning: {text}")
        with self.run_context.staged(files) as staged:
            try:
                count, more = write(staged)
            except DataError:
                # A file that is rewritten meanwhile looks damaged.
                check_unchanged(files, dumps)
                raise
            check_unchanged(files, dumps)
            epochs = self.layout.epochs.of_day(day, [dump.kind for dump in dumps])
            manifest = _manifest(dumps, day, engine_name, self.run_context.seconds())
            if self.request.datasets is not None:
                manifest |= {"partial": True, "datasets": self.request.datasets.as_dict()}
            warnings = more.pop("warnings", [])
            warnings += future_accesses(more["rucio"], day) if "rucio" in more else []
            manifest["warnings"] += warnings
            done = staged.commit({**manifest, "epochs": epochs, **more})
        for text in warnings:
            log(f"warning: {text}")
        log(
            f"{name} of {day}: {pluralize(count, 'row')} stored in {done.path} after {self.run_context.seconds():.1f} s"
        )
        return done


def _run_by_processes(day_run: DumpDayRun, dumps: list[Dump]) -> results.CurrentTable:
    # Imported before the processes are forked, so that they share it.
    from cmsspark.dumps.process_transport import ProcessTransport, spill_folder
    from cmsspark.run import local

    files = LocalFiles()
    with local.worker_pool() as workers:

        def write(staged: staged_runs.StagedRun) -> Written:
            with spill_folder(day_run.request.settings.cache_dir) as folder:
                transport = ProcessTransport(folder, workers.map)
                tables, manifest = day_run.job.make(
                    day_run.request, transport, files, dumps, day_run.before(files)
                )
            counts = [staged.write_arrow(table, name) for name, table in tables.items()]
            return counts[0], manifest

        return day_run.store(files, dumps, PROCESSES, write)


def _run_in_spark(day_run: DumpDayRun, dumps: list[Dump]) -> results.CurrentTable:
    from cmsspark.dumps.spark_transport import SparkTransport, send_table
    from cmsspark.engines.session import log_page, session, spark_progress

    spark = session(f"cmsspark {day_run.job.name}")
    log_page(spark, day_run.run_context.log)
    files = LocalFiles() if dumps else files_for("hdfs://", spark)
    day_run.run_context.lock(files)
    chosen = dumps or day_run.job.choose(files, day_run.layout, day_run.request.day)

    def write(staged: staged_runs.StagedRun) -> Written:
        with spark_progress(spark, "reading dumps in Spark"):
            tables, manifest = day_run.job.make(
                day_run.request, SparkTransport(spark), files, chosen, day_run.before(files)
            )
            if day_run.request.fmt == "parquet":
                counts = [staged.write_arrow(table, name) for name, table in tables.items()]
                return counts[0], manifest
            counts = [
                staged.write(
                    send_table(spark, table, stored_table(name)), name, day_run.request.fmt
                )
                for name, table in tables.items()
            ]
            return counts[0], manifest

    return day_run.store(files, chosen, SPARK, write)


def _readers() -> dict[str, Any]:
    """Return entries of the manifest: whether compiled code reads the dumps; if not,
    why, and the number of readers.
    """
    from cmsspark.engines.worker_pool import cores

    reason = unavailable_reason()
    return {"compiled": False, "readers": {reason: cores()}} if reason else {"compiled": True}


def _manifest(dumps: list[Dump], day: date, engine_name: str, seconds: float) -> dict[str, Any]:
    return {
        "dumps": dumps_summary(dumps),
        "inputs": [
            {
                "table": name,
                "folder": dump.table_folder(name),
                "files": [[f.path, f.size, f.mtime_ms] for f in listed],
            }
            for dump in dumps
            for name, listed in dump.tables.items()
        ],
        "warnings": [text for dump in dumps for text in dump.warnings],
        "engine": engine_name,
        # What executors of a cluster read with is not known here.
        **(_readers() if engine_name == PROCESSES else {}),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "timestamp": dates.start_ms(day),
    }
