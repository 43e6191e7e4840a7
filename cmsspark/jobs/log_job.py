"""The commands of the jobs on log streams: ``data_aggregation`` and the report of each single stream.

They differ in their streams and tables only, which the index of jobs takes from the registry of streams.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from cmsspark.jobs import Job
from cmsspark.jobs.options import StreamsType, job_options, settings_of, store_of
from cmsspark.sources.registry import STREAMS, streams_of_day


def command_of(job: Job) -> click.Command:
    """A click command that counts a day of the job's streams into its tables.

    Without ``--streams`` these are the streams that are expected to have logs of the day; a job whose streams all lie
    outside of it keeps them, so that the error names what is not there.
    """

    @click.command(job.name, help=f"{job.about}. Exit codes: docs/operations.md.")
    @job_options
    @click.option("--allow-tmp", is_flag=True, help="Read a day's .tmp folder where there is no final one.")
    @click.option(
        "--allow-missing", is_flag=True, help="Leave out streams that are not there; marks the result partial."
    )
    @click.option("--max-malformed", metavar="SHARE", help="Tolerated malformed records: 0.01, 1%, or aaa=1%,eos=0.5%.")
    @click.option(
        "--accept-damaged",
        multiple=True,
        metavar="FILE",
        help="Read this file of the day as far as it is intact; marks the result partial. May stand several times.",
    )
    @click.option("--refresh-dumps", is_flag=True, help="Choose the dumps anew, not those of the day's last run.")
    @click.option(
        "--join",
        type=click.Choice(["auto", "index", "shuffle"]),
        default="auto",
        show_default=True,
        help="How files find their dataset.",
    )
    @click.option("--feed", type=click.Choice(["auto", "direct", "spark"]), default="auto", hidden=True)
    def command(
        day: date, fout: str | None, settings_file: str | None, verbose: bool, debug: bool, **options: Any
    ) -> None:
        # Not at import: `--help` must answer at once.
        from cmsspark.jobs import report
        from cmsspark.jobs.day import run
        from cmsspark.jobs.request import DayRequest

        settings = settings_of(settings_file)
        options["streams"] = options.get("streams") or streams_of_day(day, job.streams) or job.streams
        request = DayRequest(job.name, day, store_of(fout, settings), settings, tables=job.tables, **options)
        report.leave(request.fout, job.name, run(request), lambda text: click.echo(text, err=True))

    if "partials" not in job.tables:
        command = click.option(
            "--recount", is_flag=True, help="Read the logs, also where data_aggregation has counted the same files."
        )(command)
    if len(job.streams) > 1:
        choose = click.option("--streams", type=StreamsType(), help=f"Streams to read (default: {','.join(STREAMS)}).")
        command = choose(command)
    return command
