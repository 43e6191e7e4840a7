"""``popularity_site_features``: features and labels of popularity, one row for each dataset, site and week."""

from __future__ import annotations

from functools import partial
from typing import Final

from cmsspark.apps.popularity import features_job

NAME: Final = "popularity_site_features"

run = partial(features_job.run, name=NAME, by_site=True)
command = features_job.command_of(NAME, run)
