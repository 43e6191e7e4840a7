"""Jobs on dumps alone: choose them, read the tables, build, store. A job adds its ``build`` and its columns.

Processes of this host run them where the dumps and the store lie on its disks, else Spark does. Both make the same
rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark import days
from cmsspark.compiled import why_not
from cmsspark.jobs import JOBS, engine
from cmsspark.jobs.attended import Attended, attended
from cmsspark.jobs.options import job_options, settings_of, store_of
from cmsspark.jobs.provenance import check_unchanged, dumps_told, is_all_local, versions
from cmsspark.sinks import store
from cmsspark.sources import folders
from cmsspark.sources.folders import Dump, Layout
from cmsspark.storage import Files, LocalFiles, files_for

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.settings import Settings
    from cmsspark.transforms.dump_frames import Frames

Tables = Mapping[str, "DataFrame"]


@dataclass(frozen=True)
class DumpJob:
    """A job on dumps. ``dbs``: the columns it reads of each DBS table; ``replicas``: whether it reads the snapshot.

    ``build(frames, day)`` makes the job's table, which has its name, from the frames of
    :func:`cmsspark.transforms.dump_frames.read_frames`. ``build_in_spark(tables, day)`` makes the same rows from the
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
        return [*chosen, folders.choose_phedex_dump(files, layout, day)] if self.replicas else chosen

    def tables(self, spark: SparkSession, dumps: list[Dump]) -> dict[str, DataFrame]:
        """The tables that ``build_in_spark`` takes."""
        from cmsspark.sources import dbs, phedex

        read: dict[str, DataFrame] = {}
        for dump in dumps:
            if dump.kind == "phedex":
                read["replicas"] = phedex.replicas(spark, dump)
            else:
                read |= {name: dbs.table(spark, dump, name, columns) for name, columns in self.dbs.items()}
        return read

    def command(self) -> click.Command:
        """The job's click command."""

        @click.command(self.name, help=f"{JOBS[self.name].about}. Exit codes: docs/operations.md.")
        @job_options
        def command(
            day: date, fout: str | None, settings_file: str | None, root: str | None, fmt: str, **_options: Any
        ) -> None:
            settings = settings_of(settings_file)
            run(self, day, store_of(fout, settings), settings, root=root, fmt=fmt)

        return command


def run(
    job: DumpJob,
    day: date,
    fout: str,
    settings: Settings,
    *,
    root: str | None = None,
    fmt: str = "parquet",
    engine_name: str = "auto",
    say: Callable[[str], None] | None = None,
) -> store.CurrentTable:
    """Make the job's table for the day and store it; on any failure the previous result stays.

    ``engine_name``: auto, processes or spark. Raises InputMissing (66), NotReady (75), DataError (65), OutputError (73)
    and UsageError (2) where processes are asked for what only Spark does.
    """
    log = say or (lambda text: click.echo(text, err=True))
    layout = Layout.load(settings.sources, root or settings.root)
    is_local = is_all_local(layout, ("dbs", "phedex"), fout)
    chosen = engine.choose(engine_name, is_local, fmt)
    if chosen == engine.SPARK:
        engine.go_back_for_spark()
    with attended(settings, fout, job.name, day, log) as run_context:
        # What is missing on the local disk is told before a JVM starts; so is who else works on the day.
        if is_local:
            run_context.lock(LocalFiles())
        dumps = job.choose(LocalFiles(), layout, day) if is_local else []
        start = _run_by_processes if chosen == engine.PROCESSES else _run_in_spark
        done = start(_Work(job, day, fout, settings, layout, fmt, run_context), dumps)
        run_context.manifest = done.manifest
        return done


@dataclass(frozen=True)
class _Work:
    """A run of a job for a day."""

    job: DumpJob
    day: date
    fout: str
    settings: Settings
    layout: Layout
    fmt: str
    run_context: Attended

    def store(
        self, files: Files, dumps: list[Dump], engine_name: str, write: Callable[[store.Run], int]
    ) -> store.CurrentTable:
        """Have ``write`` write the table into a new run, and make that current."""
        log, name = self.run_context.tell, self.job.name
        for dump in dumps:
            log(f"{dump.kind} dump: {dump.folder}")
            for text in dump.warnings:
                log(f"warning: {text}")
        staged = store.stage(files, self.fout, name, self.day, self.run_context.check)
        try:
            count = write(staged)
            check_unchanged(files, dumps)
            done = staged.commit(_manifest(dumps, self.day, engine_name, self.seconds()))
        except BaseException:
            staged.abandon()
            raise
        log(f"{name} of {self.day}: {count:,} rows stored in {done.path} after {self.seconds():.1f} s")
        return done

    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.run_context.began_ticks


def _run_by_processes(work: _Work, dumps: list[Dump]) -> store.CurrentTable:
    from cmsspark.jobs import by_processes
    from cmsspark.jobs.dump_parts import spill_folder, write_by_processes

    with by_processes.crew() as workers:

        def write(staged: store.Run) -> int:
            with spill_folder(work.settings.cache_dir) as folder:
                return write_by_processes(work.job, work.day, dumps, folder, workers.map, staged)

        return work.store(LocalFiles(), dumps, engine.PROCESSES, write)


def _run_in_spark(work: _Work, dumps: list[Dump]) -> store.CurrentTable:
    from cmsspark.session import cause_of, session

    spark = session(f"cmsspark {work.job.name}")
    files = LocalFiles() if dumps else files_for("hdfs://", spark)
    work.run_context.lock(files)
    chosen = dumps or work.job.choose(files, work.layout, work.day)

    def write(staged: store.Run) -> int:
        rows = work.job.build_in_spark(work.job.tables(spark, chosen), work.day)
        return staged.write(rows, work.job.name, work.fmt)

    try:
        return work.store(files, chosen, engine.SPARK, write)
    except Exception as error:
        raise cause_of(error) from None


def _readers() -> dict[str, Any]:
    """Whether the dumps are read by compiled code; if not, why not, and by how many readers."""
    from cmsspark.transforms.local_scan import cores

    why = why_not()
    return {"compiled": False, "readers": {why: cores()}} if why else {"compiled": True}


def _manifest(dumps: list[Dump], day: date, engine_name: str, seconds: float) -> dict[str, Any]:
    return {
        "dumps": dumps_told(dumps),
        "inputs": [
            {"table": name, "folder": dump.folder_of(name), "files": [[f.path, f.size, f.mtime_ms] for f in listed]}
            for dump in dumps
            for name, listed in dump.tables.items()
        ],
        "warnings": [text for dump in dumps for text in dump.warnings],
        "engine": engine_name,
        # What executors of a cluster read with is not known here.
        **(_readers() if engine_name == engine.PROCESSES else {}),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "timestamp": days.start_ms(day),
    }
