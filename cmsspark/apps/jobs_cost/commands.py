"""The click command of a job on a feed, which both jobs share."""

from __future__ import annotations

from typing import Any

import click

from cmsspark.base.errors import UsageError
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import engine_option, job_options, reading_options, settings_of, store_of, with_sources
from cmsspark.store.job_index import JOBS


def feed_command(name: str, feed_name: str) -> click.Command:
    """Return the command that makes the tables of the feed whose constant in ``feeds`` is ``feed_name``."""

    @click.command(name, help=f"{JOBS[name].about}. Exit codes: cmsspark help exit-codes.")
    @job_options
    @output_options
    @reading_options
    @click.option("--feed", "spark_feed", type=click.Choice(["auto", "direct", "spark"]), default="auto", hidden=True)
    @engine_option
    def command(settings_file: str | None, fout: str | None, as_json: bool, **options: Any) -> None:
        # Not at import: `--help` must answer at once.
        from cmsspark.apps.jobs_cost import feeds
        from cmsspark.apps.jobs_cost.day_run import FeedRequest, run

        if options["fmt"] != "parquet":
            raise UsageError(f"{name} is stored as Parquet", found="--format csv", next_step="leave out --format")
        settings = with_sources(settings_of(settings_file), options.pop("source"))
        request = FeedRequest(
            name, options.pop("day"), store_of(fout, settings), settings, feed=getattr(feeds, feed_name), **options
        )
        print_outcome(name, request.day, as_json, lambda: run(request))

    return command
