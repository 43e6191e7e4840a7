"""``popularity_site_evaluate``: how good forecasts of popularity by site were in past weeks, with a report."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.apps.popularity import evaluate_job

NAME: Final = "popularity_site_evaluate"

run = partial(evaluate_job.run, name=NAME, by_site=True)
command = evaluate_job.command_of(NAME, run)
