"""cmsspark: which CMS datasets are used, where, by how many and at what cost, from a day's logs.

Importing this package starts nothing: no JVM, no Spark, no file is read. In notebooks and scripts:

    >>> import cmsspark as cms
    >>> cms.days()
    [datetime.date(2026, 1, 15)]
    >>> usage = cms.read("data_aggregation", "2026-01-15")
    >>> list(cms.sql("select stream, sum(accesses) as accesses from data_aggregation group by 1").columns)
    ['stream', 'accesses']

``read`` takes a week, a month or a range as well. With Spark: ``session``, ``table``,
``accesses``, and ``measure`` for what a block of statements used. ``measure`` is in
:mod:`cmsspark.apps.monitor.measured_block`, all others are in
:mod:`cmsspark.notebook`; a module is imported when a function of it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmsspark.apps.monitor.measured_block import measure
    from cmsspark.notebook import accesses, days, read, session, sql, table
    from cmsspark.run.own_inputs import Accesses, DumpTable, Folder, Stored
    from cmsspark.run.own_job import job

    __version__: str

#: The public names, by the module that has them.
_NAMES = {
    "cmsspark.notebook": ("accesses", "days", "read", "session", "sql", "table"),
    "cmsspark.apps.monitor.measured_block": ("measure",),
    "cmsspark.run.own_inputs": ("Accesses", "DumpTable", "Folder", "Stored"),
    "cmsspark.run.own_job": ("job",),
}
__all__ = [
    "Accesses",
    "DumpTable",
    "Folder",
    "Stored",
    "__version__",
    "accesses",
    "days",
    "job",
    "measure",
    "read",
    "session",
    "sql",
    "table",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("cmsspark.base.version").version()
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
