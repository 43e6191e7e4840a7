"""A reconciliation as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cmsspark.base.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.base.text import terminal
from cmsspark.sources.registry import FEEDS

#: Bins in the order in which they are shown. A stream of jobs has some of its own, and lacks some of accesses.
_BINS: Final = tuple(
    dict.fromkeys(
        (
            *("read", "matched", *UNMATCHED_BINS, "malformed", "out_of_day", "write_only"),
            *(*UNMATCHED_JOB_BINS, *JOB_BINS),
            *(name for feed in FEEDS.values() for name in feed.bins),
        )
    )
)


def table(bins: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the reconciliation of a manifest as text for a terminal: a line for each bin, a column for each stream.

    A bin that a stream does not have is blank; one that no stream has is left out. So the table fits 80 columns
    whatever the number of bins.
    """
    flat = {stream: {**counts, **counts["unmatched"]} for stream, counts in bins.items()}
    rows = [
        [name, *(counts.get(name, "") for counts in flat.values())]
        for name in _BINS
        if any(name in counts for counts in flat.values())
    ]
    return "\n".join(terminal.table(("bin", *flat), rows, indent="")) if flat else ""
