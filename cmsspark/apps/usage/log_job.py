"""The commands of the jobs on log streams: ``data_aggregation`` and the report of each
single stream.

They differ in their streams and tables only, which the index of jobs takes from the
registry of streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.base.text import progress_line
from cmsspark.cli.options import (
    StreamsType,
    engine_option,
    job_options,
    output_options,
    print_outcome,
    reading_options,
    require_store,
    with_sources,
)
from cmsspark.settings.settings import load_settings
from cmsspark.sources.layout import Epochs
from cmsspark.sources.registry import (
    JOB_TABLES,
    SITE_PAIRS,
    STREAMS,
    STREAMS_BY_NAME,
    STREAMS_NAMING_READERS,
    STREAMS_OF_JOBS,
)
from cmsspark.store.own_jobs import Job, declare, stream_report

if TYPE_CHECKING:
    from cmsspark.run.request import DayRequest
    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable

#: Options of the command that are no part of a request.
_NOT_OF_A_REQUEST = ("day", "fout", "settings_file", "source", "as_json")


def day_request(job: Job, options: Mapping[str, Any], settings: Settings, fout: str) -> DayRequest:
    """Return the request that the parsed ``options`` of a job on log streams make
    (click's names and values).

    Without ``streams`` these are the job's streams that are expected to have logs of
    the day; a job whose streams all lie outside of it keeps them, so that the error
    names what is not there.
    """
    from cmsspark.run.request import DayRequest

    day = options["day"]
    arguments = {name: value for name, value in options.items() if name not in _NOT_OF_A_REQUEST}
    settings = with_sources(settings, options.get("source", ()))
    epochs = Epochs.load(settings.sources, settings.where)
    arguments["streams"] = (
        options.get("streams") or epochs.streams_of_day(day, job.streams) or job.streams
    )
    needs = dict.fromkeys(JOB_TABLES, STREAMS_OF_JOBS) | {SITE_PAIRS: STREAMS_NAMING_READERS}
    tables = tuple(
        table
        for table in job.tables
        if table not in needs or {*arguments["streams"]} & {*needs[table]}
    )
    return DayRequest(job.name, day, fout, settings, tables=tables, **arguments)


def make_command(job: Job) -> click.Command:
    """Return a click command that counts a day of the job's streams into its tables."""

    @click.command(job.name, help=f"{job.about}. Exit codes: cmsspark help exit-codes.")
    @job_options
    @output_options
    @reading_options
    @click.option(
        "--allow-missing",
        is_flag=True,
        help="Leave out streams that are not there; marks the result partial.",
    )
    @click.option(
        "--refresh-dumps",
        is_flag=True,
        help="Choose the dumps again; without it the day keeps those of its last run.",
    )
    @click.option(
        "--join",
        type=click.Choice(["auto", "index", "shuffle"]),
        default="auto",
        show_default=True,
        help="How files find their dataset.",
    )
    @click.option(
        "--feed", type=click.Choice(["auto", "direct", "spark"]), default="auto", hidden=True
    )
    @engine_option
    def command(
        settings_file: str | None, fout: str | None, as_json: bool, **options: Any
    ) -> None:
        # Not at import: `--help` must answer at once.
        from cmsspark.run import run_report
        from cmsspark.run.log_day import run

        settings = load_settings(settings_file)
        request = day_request(job, options, settings, require_store(fout, settings))

        def work() -> CurrentTable:
            done = run(request)
            run_report.write_page(request.fout, job.name, done, progress_line.log)
            return done

        print_outcome(job.name, request.day, as_json, work)

    if "partials" not in job.tables:
        command = click.option(
            "--recount",
            is_flag=True,
            help="Read the logs, also where data_aggregation has counted the same files.",
        )(command)
    if len(job.streams) > 1:
        choose = click.option(
            "--streams",
            type=StreamsType(),
            help=f"Streams to read (default: {','.join(STREAMS)}).",
        )
        command = choose(command)
    return command


_JOBS: Final = (
    Job(
        "data_aggregation",
        "One day of all streams per dataset, site and app",
        ("data_aggregation", "partials", SITE_PAIRS, *JOB_TABLES),
        streams=STREAMS,
        module=__name__,
    ),
    *(stream_report(stream) for stream in STREAMS_BY_NAME.values() if stream.has_report),
)
for _job in _JOBS:
    declare(_job, partial(make_command, _job), partial(day_request, _job))
