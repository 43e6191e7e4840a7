"""``popularity_site_forecast``: which datasets will be popular at which site in the week from a day on."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.jobs import popularity_forecast

NAME: Final = "popularity_site_forecast"

run = partial(popularity_forecast.run, name=NAME, by_site=True)
command = popularity_forecast.command_of(NAME, run)
