"""Jobs on the popularity of datasets at sites: those on datasets, with a series for each dataset and site."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click

from cmsspark.apps.popularity import evaluate_job, features_job, forecast_job, train_job
from cmsspark.store import results
from cmsspark.store.job_index import Job

_BY_NAME: Final[dict[str, Any]] = {
    "popularity_site_evaluate": evaluate_job,
    "popularity_site_features": features_job,
    "popularity_site_forecast": forecast_job,
    "popularity_site_train": train_job,
}


def run(name: str, *arguments: Any, **options: Any) -> results.CurrentTable:
    """Run a job by site, with the arguments and errors of ``run`` of the job on datasets."""
    stored: results.CurrentTable = _BY_NAME[name].run(*arguments, **options, name=name, by_site=True)
    return stored


def make_command(job: Job) -> click.Command:
    """Return the click command of a job by site."""
    command: click.Command = _BY_NAME[job.name].build_command(job.name, partial(run, job.name))
    return command
