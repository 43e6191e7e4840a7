"""The pages by the last part of their address, in the order of the navigation. It names modules and imports none.

A page is one module with ``PAGE``, an object with ``title``, ``about``, ``needs_use`` and ``view(request)``, which
returns a ``Content`` (:mod:`cmsspark.dashboard.widgets`, also as ``request.widgets``). Another room adds its page by a
line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from cmsspark.dashboard.page_request import PageDefinition

PAGES: Final[Mapping[str, str]] = {
    "popularity": "cmsspark.dashboard.pages.popularity",
    "dataset": "cmsspark.dashboard.pages.dataset",
    "sites": "cmsspark.dashboard.pages.sites",
    "data": "cmsspark.dashboard.pages.data",
    "users": "cmsspark.dashboard.pages.users",
    "forecasts": "cmsspark.dashboard.pages.forecasts",
    "caches": "cmsspark.dashboard.pages.caches",
    "efficiency": "cmsspark.dashboard.pages.efficiency",
    "hpc": "cmsspark.dashboard.pages.hpc",
    "runs": "cmsspark.dashboard.pages.runs",
    "spark": "cmsspark.dashboard.pages.spark",
    "sql": "cmsspark.dashboard.pages.sql",
}


@cache
def page(name: str) -> PageDefinition:
    """The page of that name. Raises KeyError where there is none."""
    found: PageDefinition = importlib.import_module(PAGES[name]).PAGE
    return found


def navigation() -> list[tuple[str, str]]:
    """The name and title of each page."""
    return [(name, page(name).title) for name in PAGES]
