"""The pages by the last part of their address, in the order of the navigation. It names
modules and imports none.

A page is one module with ``PAGE``, an object with ``title``, ``about``, ``needs_use``
and ``view(request)``, which returns a ``Content``
(:mod:`cmsspark.apps.dashboard.widgets`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from cmsspark.apps.dashboard.page_request import PageDefinition
from cmsspark.base.entry_points import with_packages

_BUILT_IN: Final[Mapping[str, str]] = {
    "popularity": "cmsspark.apps.dashboard.pages.popularity",
    "compare": "cmsspark.apps.dashboard.pages.compare",
    "datasets": "cmsspark.apps.dashboard.pages.datasets",
    "dataset": "cmsspark.apps.dashboard.pages.dataset",
    "sites": "cmsspark.apps.dashboard.pages.sites",
    "data": "cmsspark.apps.dashboard.pages.data",
    "storage": "cmsspark.apps.dashboard.pages.storage",
    "users": "cmsspark.apps.dashboard.pages.users",
    "efficiency": "cmsspark.apps.dashboard.pages.efficiency",
    "steps": "cmsspark.apps.dashboard.pages.steps",
    "hpc": "cmsspark.apps.dashboard.pages.hpc",
    "runs": "cmsspark.apps.dashboard.pages.runs",
    "spark": "cmsspark.apps.dashboard.pages.spark",
    "table": "cmsspark.apps.dashboard.pages.table",
    "sql": "cmsspark.apps.dashboard.pages.sql",
}
#: All pages; those of installed packages are modules of the entry point group
#: ``cmsspark.pages``.
PAGES: Final[Mapping[str, str]] = with_packages(
    "cmsspark.pages", _BUILT_IN, lambda entry: entry.value
)


@cache
def page(name: str) -> PageDefinition:
    """Return the page of that name. Raises KeyError where there is none."""
    definition: PageDefinition = importlib.import_module(PAGES[name]).PAGE
    return definition


def navigation() -> list[tuple[str, str]]:
    """Return the name and title of each page."""
    return [(name, page(name).title) for name in PAGES]
