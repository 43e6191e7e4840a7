"""The command of a job on log streams: data_aggregation and the single-stream reports differ in streams and tables
only.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from cmsspark.access import STREAMS
from cmsspark.jobs import JOBS
from cmsspark.jobs.options import StreamsType, job_options, settings_of, store_of


def log_job(name: str, streams: tuple[str, ...], tables: tuple[str, ...]) -> click.Command:
    """A click command that counts a day of ``streams`` into ``tables``."""

    @click.command(name, help=f"{JOBS[name].about}. Exit codes: docs/operations.md.")
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
    @click.option(
        "--quarantine-above",
        type=click.IntRange(0, 2**63 - 2),
        metavar="BYTES",
        help="Records that read more bytes (CRAB: took more seconds) are malformed; such ones mark the result partial.",
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
        options.setdefault("streams", streams)
        request = DayRequest(name, day, store_of(fout, settings), settings, tables=tables, **options)
        report.leave(request.fout, name, run(request), lambda text: click.echo(text, err=True))

    if "partials" not in tables:
        command = click.option(
            "--recount", is_flag=True, help="Read the logs, also where data_aggregation has counted the same files."
        )(command)
    if len(streams) > 1:
        choose = click.option(
            "--streams", type=StreamsType(), default=STREAMS, help="Streams to read (default: aaa,eos,cmssw,crab)."
        )
        command = choose(command)
    return command
