"""Jobs on dumps alone: choose the dumps, read the tables, build, store. A job adds its ``build`` and its columns.

Processes of this host run them where the dumps and the store are on its disks, otherwise Spark. Both make the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark import days
from cmsspark.compiled import unavailable_reason
from cmsspark.file_systems import files_for
from cmsspark.pipeline.job_index import JOBS, Job
from cmsspark.pipeline.job_run import begin
from cmsspark.pipeline.options import engine_option, job_options, settings_of, store_of
from cmsspark.pipeline.provenance import check_unchanged, dumps_summary, versions
from cmsspark.pipeline.request import JobRequest
from cmsspark.pipeline.run_context import RunContext
from cmsspark.runners.engines import PROCESSES, SPARK
from cmsspark.sources import folders
from cmsspark.sources.folders import Dump, Layout
from cmsspark.storage import Files, LocalFiles
from cmsspark.store import results

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.kernel.dump_frames import Frames
    from cmsspark.settings import Settings

Tables = Mapping[str, "DataFrame"]


@dataclass(frozen=True)
class DumpJob:
    """A job on dumps. ``dbs``: the columns it reads of each DBS table; ``replicas``: whether it reads the snapshot.

    ``build(frames, day)`` makes the job's table, which has its name, from the frames of
    :func:`cmsspark.kernel.dump_frames.read_frames`. ``build_in_spark(tables, day)`` makes the same rows from the
    dumps' tables as DataFrames; the replicas are ``tables["replicas"]`` there.
    """

    name: str
    dbs: Mapping[str, tuple[str, ...]]
    replicas: bool
    build: Callable[[Frames, date], pl.DataFrame]
    build_in_spark: Callable[[Tables, date], DataFrame]

    def choose(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """The dumps for the day. Raises InputMissing (66) and NotReady (75)."""
        chosen = [folders.choose_dbs_dump(files, layout, day, self.dbs)] if self.dbs else []
        return [*chosen, folders.choose_replica_dump(files, layout, day)] if self.replicas else chosen

    def tables(self, spark: SparkSession, dumps: list[Dump]) -> dict[str, DataFrame]:
        """The tables that ``build_in_spark`` takes."""
        from cmsspark.runners import dump_tables

        read: dict[str, DataFrame] = {}
        for dump in dumps:
            if dump.kind == "phedex":
                read["replicas"] = dump_tables.replica_rows(spark, dump)
            else:
                read |= {name: dump_tables.dump_table(spark, dump, name, columns) for name, columns in self.dbs.items()}
        return read

    def command(self) -> click.Command:
        """The job's click command."""

        @click.command(self.name, help=f"{JOBS[self.name].about}. Exit codes: cmsspark help exit-codes.")
        @job_options
        @engine_option
        def command(settings_file: str | None, fout: str | None, **options: Any) -> None:
            settings = settings_of(settings_file)
            run(self, dump_request(JOBS[self.name], options, settings, store_of(fout, settings)))

        return command


def dump_request(job: Job, options: Mapping[str, Any], settings: Settings, fout: str) -> JobRequest:
    """The request that the parsed ``options`` of a job on dumps make (click's names and values)."""
    return JobRequest(
        job.name, options["day"], fout, settings, options["root"], fmt=options["fmt"], engine=options["engine"]
    )


def run(job: DumpJob, request: JobRequest, log: Callable[[str], None] | None = None) -> results.CurrentTable:
    """Make the job's table for the day and store it; on any failure the previous result stays.

    Raises InputMissing (66), NotReady (75), DataError (65) and OutputError (73); UsageError (2) where processes are
    requested for what only Spark does, SettingsError (78) where Spark is needed and has no session.
    """
    with begin(request, log) as job_run:
        # Missing local input is an error before a JVM starts.
        dumps = job.choose(LocalFiles(), job_run.layout, request.day) if job_run.is_local else []
        start = _run_by_processes if job_run.engine == PROCESSES else _run_in_spark
        done = start(_Work(job, request, job_run.layout, job_run.run_context), dumps)
        job_run.run_context.manifest = done.manifest
        return done


@dataclass(frozen=True)
class _Work:
    """A run of a job for a day."""

    job: DumpJob
    request: JobRequest
    layout: Layout
    run_context: RunContext

    def store(
        self, files: Files, dumps: list[Dump], engine_name: str, write: Callable[[results.StagedRun], int]
    ) -> results.CurrentTable:
        """Write the table into a new run with ``write``, and make the run current."""
        log, name, day = self.run_context.log, self.job.name, self.request.day
        for dump in dumps:
            log(f"{dump.kind} dump: {dump.folder}")
            for text in dump.warnings:
                log(f"warning: {text}")
        with self.run_context.staged(files) as staged:
            count = write(staged)
            check_unchanged(files, dumps)
            done = staged.commit(_manifest(dumps, day, engine_name, self.run_context.seconds()))
        log(f"{name} of {day}: {count:,} rows stored in {done.path} after {self.run_context.seconds():.1f} s")
        return done


def _run_by_processes(work: _Work, dumps: list[Dump]) -> results.CurrentTable:
    from cmsspark.pipeline.dump_parts import spill_folder, write_by_processes
    from cmsspark.runners import local

    with local.worker_pool() as workers:

        def write(staged: results.StagedRun) -> int:
            with spill_folder(work.request.settings.cache_dir) as folder:
                return write_by_processes(work.job, work.request.day, dumps, folder, workers.map, staged)

        return work.store(LocalFiles(), dumps, PROCESSES, write)


def _run_in_spark(work: _Work, dumps: list[Dump]) -> results.CurrentTable:
    from cmsspark.runners.session import cause_of, session

    spark = session(f"cmsspark {work.job.name}")
    files = LocalFiles() if dumps else files_for("hdfs://", spark)
    work.run_context.lock(files)
    chosen = dumps or work.job.choose(files, work.layout, work.request.day)

    def write(staged: results.StagedRun) -> int:
        rows = work.job.build_in_spark(work.job.tables(spark, chosen), work.request.day)
        return staged.write(rows, work.job.name, work.request.fmt)

    try:
        return work.store(files, chosen, SPARK, write)
    except Exception as error:
        raise cause_of(error) from None


def _readers() -> dict[str, Any]:
    """Entries of the manifest: whether compiled code reads the dumps; if not, the reason and the number of readers."""
    from cmsspark.runners.worker_pool import cores

    reason = unavailable_reason()
    return {"compiled": False, "readers": {reason: cores()}} if reason else {"compiled": True}


def _manifest(dumps: list[Dump], day: date, engine_name: str, seconds: float) -> dict[str, Any]:
    return {
        "dumps": dumps_summary(dumps),
        "inputs": [
            {"table": name, "folder": dump.folder_of(name), "files": [[f.path, f.size, f.mtime_ms] for f in listed]}
            for dump in dumps
            for name, listed in dump.tables.items()
        ],
        "warnings": [text for dump in dumps for text in dump.warnings],
        "engine": engine_name,
        # What executors of a cluster read with is not known here.
        **(_readers() if engine_name == PROCESSES else {}),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "timestamp": days.start_ms(day),
    }
