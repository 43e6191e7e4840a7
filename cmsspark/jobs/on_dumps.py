"""Jobs on dumps alone: choose them, read the tables, build, store. A job adds its ``build`` and its columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark import days
from cmsspark.jobs import JOBS
from cmsspark.jobs.attended import Attended, attended
from cmsspark.jobs.options import job_options, settings_of, store_of
from cmsspark.jobs.provenance import check_unchanged, dumps_told, is_all_local, versions
from cmsspark.sinks import store
from cmsspark.sources import folders
from cmsspark.sources.folders import Dump, Layout
from cmsspark.sources.registry import DUMPS
from cmsspark.storage import Files, LocalFiles, files_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.settings import Settings

Tables = Mapping[str, "DataFrame"]


@dataclass(frozen=True)
class DumpJob:
    """A job on dumps. ``dbs``: the columns it reads of each DBS table; ``replicas``: whether it reads the snapshot.

    ``build(tables, day)`` makes the job's table, which has its name; the replicas are ``tables["replicas"]``.
    """

    name: str
    dbs: Mapping[str, tuple[str, ...]]
    replicas: bool
    build: Callable[[Tables, date], DataFrame]

    def choose(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """The dumps for the day. Raises InputMissing (66) and NotReady (75)."""
        chosen = [folders.choose_dbs_dump(files, layout, day, self.dbs)] if self.dbs else []
        return [*chosen, folders.choose_phedex_dump(files, layout, day)] if self.replicas else chosen

    def tables(self, spark: SparkSession, dumps: list[Dump]) -> dict[str, DataFrame]:
        """The tables that ``build`` takes."""
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

        @click.command(self.name, help=f"{JOBS[self.name].about}. Exit codes: cmsspark help exit-codes.")
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
    say: Callable[[str], None] | None = None,
) -> store.CurrentTable:
    """Make the job's table for the day and store it; on any failure the previous result stays.

    Raises InputMissing (66), NotReady (75), DataError (65) and OutputError (73).
    """
    tell = say or (lambda text: click.echo(text, err=True))
    with attended(settings, fout, job.name, day, tell) as run_of_day:
        done = _run(job, day, fout, settings, root, fmt, tell, run_of_day)
        run_of_day.manifest = done.manifest
        return done


def _run(
    job: DumpJob,
    day: date,
    fout: str,
    settings: Settings,
    root: str | None,
    fmt: str,
    tell: Callable[[str], None],
    run_of_day: Attended,
) -> store.CurrentTable:
    from cmsspark.session import cause_of, session

    began = time.monotonic()
    layout = Layout.load(settings.sources, root or settings.root)
    is_local = is_all_local(layout, tuple(DUMPS), fout)
    # What is missing on the local disk is told before a JVM starts; so is who else works on the day.
    if is_local:
        run_of_day.lock(LocalFiles())
    dumps = job.choose(LocalFiles(), layout, day) if is_local else []
    spark = session(f"cmsspark {job.name}")
    files = LocalFiles() if is_local else files_for("hdfs://", spark)
    run_of_day.lock(files)
    dumps = dumps or job.choose(files, layout, day)
    for dump in dumps:
        tell(f"{dump.kind} dump: {dump.folder}")
        for text in dump.warnings:
            tell(f"warning: {text}")
    staged = store.stage(files, fout, job.name, day, run_of_day.check)
    try:
        count = staged.write(job.build(job.tables(spark, dumps), day), job.name, fmt)
        check_unchanged(files, dumps)
        done = staged.commit(_manifest(dumps, day, began))
    except BaseException as error:
        staged.abandon()
        if isinstance(error, Exception):
            raise cause_of(error) from None
        raise
    tell(f"{job.name} of {day}: {count:,} rows stored in {done.path} after {time.monotonic() - began:.1f} s")
    return done


def _manifest(dumps: list[Dump], day: date, began: float) -> dict[str, Any]:
    return {
        "dumps": dumps_told(dumps),
        "inputs": [
            {"table": name, "folder": dump.folder_of(name), "files": [[f.path, f.size, f.mtime_ms] for f in listed]}
            for dump in dumps
            for name, listed in dump.tables.items()
        ],
        "warnings": [text for dump in dumps for text in dump.warnings],
        "versions": versions(),
        "seconds": round(time.monotonic() - began, 1),
        "timestamp": days.start_ms(day),
    }
