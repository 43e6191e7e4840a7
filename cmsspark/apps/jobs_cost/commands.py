"""``job_efficiency`` (rules 49 to 55) and ``step_efficiency`` (rules 56 to 58): what
the jobs of a day cost.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click

from cmsspark.base.errors import UsageError
from cmsspark.cli.options import (
    engine_option,
    job_options,
    output_options,
    print_outcome,
    reading_options,
    require_store,
    with_sources,
)
from cmsspark.run.dump_day import dump_request
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import Job, declare


def make_command(job: Job) -> click.Command:
    """Return the command of a job on a feed."""

    @click.command(job.name, help=f"{job.about}. Exit codes: cmsspark help exit-codes.")
    @job_options
    @output_options
    @reading_options
    @click.option(
        "--feed",
        "spark_feed",
        type=click.Choice(["auto", "direct", "spark"]),
        default="auto",
        hidden=True,
    )
    @engine_option
    def command(
        settings_file: str | None, fout: str | None, as_json: bool, **options: Any
    ) -> None:
        # Not at import: `--help` must answer at once.
        from cmsspark.apps.jobs_cost.day_run import FeedRequest, run
        from cmsspark.apps.jobs_cost.feeds import FEEDS

        if options["fmt"] != "parquet":
            raise UsageError(
                f"{job.name} is stored as Parquet",
                found="--format csv",
                next_step="leave out --format",
            )
        settings = with_sources(load_settings(settings_file), options.pop("source"))
        feed, day = FEEDS[job.name], options.pop("day")
        request = FeedRequest(
            job.name, day, require_store(fout, settings), settings, feed=feed, **options
        )
        print_outcome(job.name, day, as_json, lambda: run(request))

    return command


_JOBS: Final = (
    Job(
        "job_efficiency",
        "What HTCondor's jobs of a day cost: efficiency, core hours and running cores",
        ("job_efficiency", "core_hours", "running_cores", "job_cost_ids"),
        aliases=("core_hours", "running_cores"),
        runs_in_processes=True,
        feed="condor",
        module=__name__,
    ),
    Job(
        "step_efficiency",
        "What the steps of production jobs cost, and how many jobs each agent ran, by WMArchive",
        ("step_efficiency", "agent_reports", "report_ids"),
        aliases=("agent_reports",),
        runs_in_processes=True,
        feed="wmarchive",
        module=__name__,
    ),
)
for _job in _JOBS:
    declare(_job, partial(make_command, _job), partial(dump_request, _job.name))
