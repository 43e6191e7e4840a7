"""``popularity_site_train``: a model of popularity by site, learned from the stored days before a day."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.apps.popularity import train_job

NAME: Final = "popularity_site_train"

run = partial(train_job.run, name=NAME, by_site=True)
command = train_job.command_of(NAME, run)
