"""A reconciliation as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmsspark.access import UNMATCHED_BINS
from cmsspark.reports import terminal


def table(bins: Mapping[str, Mapping[str, Any]]) -> str:
    """The reconciliation of a manifest as text for a terminal."""
    headings = ("stream", "read", "matched", *UNMATCHED_BINS, "malformed", "out_of_day", "write_only")
    rows = []
    for stream, counts in bins.items():
        first = [counts["read"], counts["matched"], *(counts["unmatched"][name] for name in UNMATCHED_BINS)]
        rows.append([stream, *first, *(counts[name] for name in ("malformed", "out_of_day", "write_only"))])
    return "\n".join(terminal.table(headings, rows, indent=""))
