"""The index of jobs: what is known of a job before its module is imported.

A job declares itself in the module where it is written, with :func:`declare`. The
built-in ones are listed in ``schemas/jobs.json``, which is generated from their
declarations (``python -m cmsspark.submit.index_file --write``). The reports of single
streams follow from the registry of streams. Users' jobs are found by
:mod:`cmsspark.store.own_jobs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.errors import UsageError
from cmsspark.base.resources import read_text
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.spelling import suggestion
from cmsspark.sources.registry import JOB_TABLES, STREAMS, STREAMS_BY_NAME, Stream
from cmsspark.store import own_jobs

if TYPE_CHECKING:
    from datetime import date

    import click

    from cmsspark.filesystems.storage import Files
    from cmsspark.settings.settings import Settings
    from cmsspark.sources.folders import Dump, Layout

#: The generated list of the built-in jobs.
INDEX_FILE: Final = "schemas/jobs.json"
#: Stands in the list for all streams of the registry.
_ALL_STREAMS: Final = "*"
_APPS: Final = "cmsspark.apps."
#: The module that reports on single streams.
_LOG_JOB: Final = f"{_APPS}usage.log_job"


@dataclass(frozen=True)
class Job:
    """What ``run_spark`` and the store know of a job: its tables, a line for
    ``run_spark --list``, and the module that declares it.
    """

    name: str
    about: str
    tables: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    #: Needs a Spark session. A job without one runs in plain Python.
    needs_spark: bool = True
    #: Processes of this host can run it without Spark. So they can every job on log streams.
    runs_in_processes: bool = False
    #: The log streams that it reads by default.
    streams: tuple[str, ...] = ()
    #: A feed with folders of days that is no stream, by its name in ``etc/sources.yaml``.
    feed: str = ""
    #: The module that declares it.
    module: str = ""
    #: It chooses dumps by itself: :attr:`Declaration.choose_dumps`.
    reads_dumps: bool = False
    #: Its results are of weeks, months or other ranges, not of days.
    of_periods: bool = False
    #: The job whose stored days its periods are made of.
    of_days: str = ""
    #: It reads no day: its --date only names the result, and is today by default.
    is_day_optional: bool = False
    #: The file of a user's job; empty for a built-in job and one of a package.
    file: str = ""
    #: What a user's job needs beside its file: modules that it imports from the same
    #: folder, the YAML of its columns, its own files.
    files: tuple[str, ...] = ()

    @property
    def subsystem(self) -> str:
        """The subsystem that it belongs to; empty for a user's job."""
        inside = self.module.removeprefix(_APPS)
        return inside.partition(".")[0] if inside != self.module else ""

    @property
    def is_own(self) -> bool:
        """Whether a user wrote it."""
        return not self.subsystem

    @property
    def word(self) -> str:
        """What names it on a command line: its name, and of a user's job its file, too."""
        return f"{self.file}:{self.name}" if self.file else self.name

    @property
    def public_tables(self) -> tuple[str, ...]:
        """The tables that are published: those without rows of single people."""
        return tuple(table for table in self.tables if not stored_table(table).is_private)

    def as_entry(self) -> dict[str, Any]:
        """Return the job as the list of built-in jobs has it, without defaults."""
        values = asdict(self)
        if self.streams == STREAMS:
            values["streams"] = (_ALL_STREAMS,)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != getattr(_DEFAULTS, name)
        }

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Job:
        """Return the job of an entry of the list."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in entry.items()
        }
        if values.get("streams") == (_ALL_STREAMS,):
            values["streams"] = STREAMS
        return cls(**values)


_DEFAULTS: Final = Job("", "")


@dataclass(frozen=True)
class Declaration:
    """A job with what its module gives.

    ``make_command()`` returns its click command. ``make_request(options, settings,
    fout)`` returns the request of its parsed options, for the choice of the engine; None
    if it has no choice. ``choose_dumps(files, layout, day)`` returns the dumps that
    it reads; None if it reads none by itself.
    """

    job: Job
    make_command: Callable[[], click.Command]
    make_request: Callable[[Mapping[str, Any], Settings, str], Any] | None = None
    choose_dumps: Callable[[Files, Layout, date], list[Dump]] | None = None


#: The declarations of the modules that are imported, by the name of the job.
DECLARED: Final[dict[str, Declaration]] = {}


def declare(
    job: Job,
    make_command: Callable[[], click.Command],
    make_request: Callable[[Mapping[str, Any], Settings, str], Any] | None = None,
    choose_dumps: Callable[[Files, Layout, date], list[Dump]] | None = None,
) -> Job:
    """Declare a job, as :class:`Declaration` describes it; returns it. The last
    declaration of a name counts, as when a module is loaded again.
    """
    DECLARED[job.name] = Declaration(job, make_command, make_request, choose_dumps)
    return job


def stream_report(stream: Stream) -> Job:
    """Return the job that reports on a single stream."""
    return Job(
        stream.report,
        f"One day of {stream.title} per dataset, site and app",
        (stream.report, *(JOB_TABLES if stream.counts_jobs else ())),
        aliases=stream.report_aliases,
        streams=(stream.name,),
        module=_LOG_JOB,
    )


class JobIndex(Mapping[str, Job]):
    """All jobs by name, in the order of ``run_spark --list``: the built-in ones, then
    those of users, which are looked for only if no built-in job has the name.
    """

    @cached_property
    def built_in(self) -> dict[str, Job]:
        """The built-in jobs."""
        jobs = [Job.from_entry(entry) for entry in json.loads(read_text(INDEX_FILE))]
        # Behind the report of all streams.
        return {job.name: job for job in (*jobs[:1], *self.stream_reports, *jobs[1:])}

    @cached_property
    def stream_reports(self) -> list[Job]:
        """The reports of single streams."""
        return [stream_report(stream) for stream in STREAMS_BY_NAME.values() if stream.has_report]

    def __getitem__(self, name: str) -> Job:
        if name in self.built_in:
            return self.built_in[name]
        return Job.from_entry(own_jobs.find(name).entry)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in own_jobs.names()

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from (name for name in own_jobs.names() if name not in self.built_in)

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: All jobs by name.
JOBS: Final = JobIndex()


def find_job(name: str) -> Job:
    """Return the job of that name or alias, with or without ``.py``.

    Raises UsageError (2) with the most similar name, or where two files declare it.
    """
    plain = name.removesuffix(".py")
    for job in JOBS.built_in.values():
        if plain in (job.name, *job.aliases):
            return job
    if plain in JOBS:
        return JOBS[plain]
    hint = suggestion(plain, [name for job in JOBS.values() for name in (job.name, *job.aliases)])
    next_step = "run_spark --list names the jobs"
    raise UsageError(
        f"there is no job {name!r}", next_step=f"{hint} {next_step}" if hint else next_step
    )


def job_of_table(table: str) -> Job:
    """Return the job that writes ``table``. Raises UsageError (2) with the names of all tables."""
    for job in JOBS.built_in.values():
        if table in (*job.tables, *job.aliases):
            return job
    for job in JOBS.values():
        if table in job.tables:
            return job
    tables = sorted({table for job in JOBS.values() for table in job.tables})
    hint = suggestion(table, tables)
    raise UsageError(
        f"there is no table {table!r}",
        found=", ".join(tables),
        next_step=hint or "name one of these tables",
    )
