"""``popularity_site_train``: a model of popularity by site, learned from the stored days before a day."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.jobs import popularity_train

NAME: Final = "popularity_site_train"

run = partial(popularity_train.run, name=NAME, by_site=True)
command = popularity_train.command_of(NAME, run)
