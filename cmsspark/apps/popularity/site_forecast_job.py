"""``popularity_site_forecast``: which datasets will be popular at which site in the week from a day on."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.apps.popularity import forecast_job

NAME: Final = "popularity_site_forecast"

run = partial(forecast_job.run, name=NAME, by_site=True)
command = forecast_job.command_of(NAME, run)
