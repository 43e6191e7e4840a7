"""Physics events: ROOT files → features → samples → classifiers. Needs the extra
``cmsspark[events]``.
"""

from cmsspark.base import extras


def require_events(*more: str) -> None:
    """Raise UsageError (2) that names the extra where one of its packages is not installed."""
    extras.require("events need", "uproot", "awkward", "numba", *more, extra="events")
