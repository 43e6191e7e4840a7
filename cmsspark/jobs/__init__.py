"""Jobs: the only room that composes all others. This index names them without importing any."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click

from cmsspark.access import STREAMS
from cmsspark.errors import UsageError


@dataclass(frozen=True)
class Job:
    """A built-in job: the module that holds its ``command``, its tables, and a line for ``run_spark --list``."""

    name: str
    about: str
    tables: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    #: Needs a Spark session. A job without one runs in plain Python.
    needs_spark: bool = True
    #: Processes of this host can run it without Spark. So they can every job on log streams.
    by_processes: bool = False
    #: The log streams that it reads unless it is asked for less.
    streams: tuple[str, ...] = ()
    #: Its results are of weeks, months or other ranges, not of days.
    of_periods: bool = False

    @property
    def module(self) -> str:
        return f"cmsspark.jobs.{self.name}"


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job(
            "data_aggregation",
            "One day of all streams per dataset, site and app",
            ("data_aggregation", "partials"),
            streams=STREAMS,
        ),
        Job("dbs_aaa", "One day of AAA (XRootD) accesses per dataset, site and app", ("dbs_aaa",), streams=("aaa",)),
        Job("dbs_eos", "One day of EOS accesses per dataset, site and app", ("dbs_eos",), streams=("eos",)),
        Job("dbs_cmssw", "One day of CMSSW reports per dataset, site and app", ("dbs_cmssw",), streams=("cmssw",)),
        Job(
            "dbs_crab",
            "One day of CRAB jobs per dataset, site and app",
            ("dbs_crab",),
            aliases=("dbs_jm",),
            streams=("crab",),
        ),
        Job("dbs_phedex", "What lies where: datasets by site and kind of storage", ("dbs_phedex",), by_processes=True),
        Job(
            "site_tier_usage",
            "How much data sit at the sites of a tier, by data tier",
            ("site_tier_usage",),
            by_processes=True,
        ),
        Job("dbs_events", "Events, files and bytes of each dataset", ("dbs_events",), by_processes=True),
        Job("phedex", "The replica snapshot of a day per site and dataset", ("phedex",), by_processes=True),
        Job(
            "period",
            "A week, a month or any range of stored days, its distinct users counted anew",
            ("period_aggregation",),
            needs_spark=False,
            of_periods=True,
        ),
        Job("cern_monit", "Publish a stored day to MONIT", (), needs_spark=False),
    )
}


def find_job(name: str) -> Job:
    """The job of that name or alias, with or without ``.py``. Raises UsageError (2) with the names there are."""
    plain = name.removesuffix(".py")
    for job in JOBS.values():
        if plain in (job.name, *job.aliases):
            return job
    raise UsageError(
        f"there is no job {name!r}", found=", ".join(sorted(JOBS)), next_step="run_spark --list shows what each does"
    )


def job_of_table(table: str) -> Job:
    """The job that writes ``table``. Raises UsageError (2) with the tables there are."""
    for job in JOBS.values():
        if table in (*job.tables, *job.aliases):
            return job
    known = sorted(table for job in JOBS.values() for table in job.tables)
    raise UsageError(f"there is no table {table!r}", found=", ".join(known))


def load_command(job: Job) -> click.Command:
    """The job's click command; importing its module must not import pyspark."""
    command = importlib.import_module(job.module).command
    assert isinstance(command, click.Command)
    return command
