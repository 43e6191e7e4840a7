"""``popularity_site_features``: features and labels of popularity, one row for each dataset, site and week."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.jobs import popularity_features

NAME: Final = "popularity_site_features"

run = partial(popularity_features.run, name=NAME, by_site=True)
command = popularity_features.command_of(NAME, run)
