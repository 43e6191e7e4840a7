"""cmsspark: which CMS datasets are used, where, by how many and at what cost, from a day's logs.

Importing this package starts nothing: no JVM, no Spark, no file is read. In notebooks and scripts::

    import cmsspark as cms

    cms.days()                                          # the stored days
    cms.read("data_aggregation", "2026-01-15")          # a table as pandas; a week, a month or a range as well
    cms.sql("select stream, sum(nacc) from data_aggregation group by 1")
    cms.session(), cms.table(…), cms.accesses(…)        # the same with Spark
    with cms.measure(): …                               # what a block of Spark used

These functions are those of :mod:`cmsspark.notebook`, and ``measure`` of :mod:`cmsspark.monitor.measured_block`; a
module is imported when one of them is used.
"""

import importlib

__version__ = "0.1.0"

#: Functions of the package and where they are. ``days`` is also a module: calling that calls this function.
_FUNCTIONS = {name: "cmsspark.notebook" for name in ("read", "sql", "session", "accesses", "table")}
_FUNCTIONS["measure"] = "cmsspark.monitor.measured_block"


def __getattr__(name: str) -> object:
    if name == "days":
        return importlib.import_module("cmsspark.days")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS, "days"})
