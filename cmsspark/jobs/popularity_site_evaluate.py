"""``popularity_site_evaluate``: how good forecasts of popularity by site were in past weeks, with a report."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.jobs import popularity_evaluate

NAME: Final = "popularity_site_evaluate"

run = partial(popularity_evaluate.run, name=NAME, by_site=True)
command = popularity_evaluate.command_of(NAME, run)
