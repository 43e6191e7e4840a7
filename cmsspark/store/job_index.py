"""The index of the built-in jobs. It names their modules and imports none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cmsspark.base.errors import UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.spelling import suggestion
from cmsspark.sources.registry import JOB_TABLES, SITE_PAIRS, STREAMS, STREAMS_BY_NAME


@dataclass(frozen=True)
class Job:
    """A built-in job: the module that holds its ``command``, its tables, and a line for
    ``run_spark --list``.
    """

    name: str
    about: str
    tables: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    #: Needs a Spark session. A job without one runs in plain Python.
    needs_spark: bool = True
    #: Processes of this host can run it without Spark. So they can every job on log streams.
    runs_in_processes: bool = False
    #: The log streams that it reads by default.
    streams: tuple[str, ...] = ()
    #: A feed with folders of days that is no stream, by its name in ``etc/sources.yaml``.
    feed: str = ""
    #: The module below ``cmsspark.apps`` that has its ``command``, or makes it:
    #: ``make_command(job)``.
    location: str = "usage.log_job"
    #: The name in that module of its :class:`cmsspark.run.dump_day.DumpJob`, if it is a
    #: job on dumps.
    dump_job: str = "JOB"
    #: Its results are of weeks, months or other ranges, not of days.
    of_periods: bool = False
    #: The job whose stored days its periods are made of.
    of_days: str = ""
    #: It reads no day: its --date only names the result, and is today by default.
    is_day_optional: bool = False

    @property
    def module(self) -> str:
        """Return the full name of the module of its command."""
        return f"cmsspark.apps.{self.location}"

    @property
    def public_tables(self) -> tuple[str, ...]:
        """The tables that are published: those without rows of single people."""
        return tuple(table for table in self.tables if not stored_table(table).is_private)


def _log_jobs() -> Iterator[Job]:
    yield Job(
        "data_aggregation",
        "One day of all streams per dataset, site and app",
        ("data_aggregation", "partials", SITE_PAIRS, *JOB_TABLES),
        streams=STREAMS,
    )
    for stream in STREAMS_BY_NAME.values():
        if stream.has_report:
            about = f"One day of {stream.title} per dataset, site and app"
            tables = (stream.report, *(JOB_TABLES if stream.counts_jobs else ()))
            yield Job(
                stream.report, about, tables, aliases=stream.report_aliases, streams=(stream.name,)
            )


#: The modules of the jobs on dumps that have one of their own.
_DUMP_JOBS: Final[Mapping[str, str]] = {
    "crsg_event_counts": "jobs_cost.crsg_event_counts",
    **{
        name: f"replicas.{name}"
        for name in ("dataset_last_access", "dbs_events", "event_counts", "site_tier_usage")
    },
}


def _dump_jobs() -> Iterator[Job]:
    for name, about in (
        ("dbs_phedex", "Replicas: datasets by site and kind of storage"),
        ("dbs_rucio", "Replicas by Rucio: datasets by site and kind of storage"),
        ("rucio_daily", "Files at each storage element of Rucio by dataset: there, new, accessed"),
        ("dataset_last_access", "When each dataset was last used, and which could be deleted"),
        ("event_counts", "Blocks, files, events and bytes by month, data tier and campaign"),
        (
            "crsg_event_counts",
            "Events of the two selections of the C-RSG report, by month and data tier",
        ),
        (
            "leftovers",
            "Replicas of datasets that are not valid in DBS, and valid datasets without replicas",
        ),
        ("catalogue_check", "Files, blocks and sizes of Rucio beside those of DBS"),
        ("site_tier_usage", "Data volume at the sites of a tier, by data tier"),
        ("dbs_events", "Events, files and bytes of each dataset"),
        ("phedex", "The replica snapshot of a day by site and dataset"),
    ):
        location = _DUMP_JOBS.get(name, "replicas.replica_jobs")
        dump_job = "JOB" if name in _DUMP_JOBS else name.upper()
        yield Job(
            name, about, (name,), runs_in_processes=True, location=location, dump_job=dump_job
        )


def _period_jobs() -> Iterator[Job]:
    for name, subsystem, about in (
        (
            "period",
            "usage",
            "A week, a month or any range of stored days, its distinct users counted anew",
        ),
        (
            "period_views",
            "usage",
            "Named views of a week, a month or any range of stored days, to be published",
        ),
        (
            "crab_popularity",
            "crab",
            "Which datasets CRAB's jobs of a period read, and how the jobs ended",
        ),
        ("crab_users", "crab", "How many people had analysis jobs of CRAB in a week or month"),
    ):
        tables: tuple[str, ...] = (name,)
        if name == "period":
            tables = ("period_aggregation", f"period_{SITE_PAIRS}")
        location = "crab.reports" if subsystem == "crab" else f"{subsystem}.{name}"
        of_days = "" if subsystem == "crab" else "data_aggregation"
        yield Job(
            name,
            about,
            tables,
            needs_spark=False,
            of_periods=True,
            of_days=of_days,
            location=location,
        )
    for feed, names in (
        ("job_efficiency", ("job_efficiency", "core_hours", "running_cores")),
        ("step_efficiency", ("step_efficiency", "agent_reports")),
    ):
        about = f"A week, a month or any range of the stored days of {feed}"
        tables = tuple(f"period_{name}" for name in names)
        name = f"{feed}_period"
        yield Job(
            name,
            about,
            tables,
            needs_spark=False,
            of_periods=True,
            of_days=feed,
            location="jobs_cost.periods",
        )


def _other_jobs() -> Iterator[Job]:
    about = "The datasets that will be popular in a week, and how good such forecasts were"
    tables = ("popularity_forecast", "popularity_quality", "popularity_predictions")
    location = "popularity.jobs"
    yield Job("popularity_forecast", about, tables, needs_spark=False, location=location)
    about = "How good forecasts of popularity were in past weeks, one Spark task each"
    yield Job("popularity_evaluate", about, ("popularity_evaluation",), location=location)
    about = "Features and labels of each dataset and week, from the stored days before a day"
    yield Job(
        "popularity_features",
        about,
        ("popularity_features",),
        needs_spark=False,
        location=location,
    )
    about = "A model of popularity with its model card, to predict with later"
    yield Job(
        "popularity_train", about, ("popularity_models",), needs_spark=False, location=location
    )
    about = "Misses of caches of several sizes at each site, by policy, one Spark task each"
    yield Job(
        "cache_comparison",
        about,
        ("cache_comparison",),
        of_periods=True,
        location="cache.comparison_job",
    )
    about = "Hits, misses and bytes from remote of the XRootD caches of a day, by site"
    yield Job(
        "xcache", about, ("xcache",), needs_spark=False, feed="xcache", location="cache.xcache_job"
    )
    about = "What HTCondor's jobs of a day cost: efficiency, core hours and running cores"
    of_jobs = ("job_efficiency", "core_hours", "running_cores", "job_cost_ids")
    at = "jobs_cost.commands"
    yield Job(
        "job_efficiency",
        about,
        of_jobs,
        of_jobs[1:3],
        runs_in_processes=True,
        feed="condor",
        location=at,
    )
    about = (
        "What the steps of production jobs cost, and how many jobs each agent ran, by WMArchive"
    )
    tables = ("step_efficiency", "agent_reports", "report_ids")
    yield Job(
        "step_efficiency",
        about,
        tables,
        tables[1:2],
        runs_in_processes=True,
        feed="wmarchive",
        location=at,
    )
    for name, about, table in (
        (
            "events_prepare",
            "Features of collision events from ROOT files, with a cutflow",
            "event_cutflow",
        ),
        (
            "events_sample",
            "A balanced sample of prepared events, split, with scalers",
            "event_sample",
        ),
        ("events_train", "Classifiers of events, trained and judged on a sample", "event_models"),
        (
            "events_search",
            "The best parameters of a classifier of events, one task a trial",
            "event_search",
        ),
    ):
        yield Job(name, about, (table,), is_day_optional=True, location="events.jobs")
    about = "Makes events in ROOT files, and a trained classifier of them"
    yield Job("events_demo", about, (), is_day_optional=True, location="events.jobs")
    about = "Publish a stored day to MONIT"
    aliases = ("cern_monit3",)
    yield Job(
        "cern_monit", about, (), aliases=aliases, needs_spark=False, location="results.cern_monit"
    )


#: All built-in jobs by name, in the order of ``run_spark --list``.
JOBS: dict[str, Job] = {
    job.name: job for jobs in (_log_jobs, _dump_jobs, _period_jobs, _other_jobs) for job in jobs()
}


def find_job(name: str) -> Job:
    """Return the job of that name or alias, with or without ``.py``.

    Raises UsageError (2) with the most similar name.
    """
    plain = name.removesuffix(".py")
    for job in JOBS.values():
        if plain in (job.name, *job.aliases):
            return job
    hint = suggestion(plain, [name for job in JOBS.values() for name in (job.name, *job.aliases)])
    next_step = "run_spark --list names the jobs"
    raise UsageError(
        f"there is no job {name!r}", next_step=f"{hint} {next_step}" if hint else next_step
    )


def job_of_table(table: str) -> Job:
    """Return the job that writes ``table``. Raises UsageError (2) with the names of all tables."""
    for job in JOBS.values():
        if table in (*job.tables, *job.aliases):
            return job
    tables = sorted({table for job in JOBS.values() for table in job.tables})
    hint = suggestion(table, tables)
    raise UsageError(
        f"there is no table {table!r}",
        found=", ".join(tables),
        next_step=hint or "name one of these tables",
    )
