"""A reconciliation as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmsspark.access import UNMATCHED_BINS
from cmsspark.reports import terminal


def table(bins: Mapping[str, Mapping[str, Any]]) -> str:
    """The reconciliation as text for a terminal, from its form in the manifest."""
    head = ("stream", "read", "matched", *UNMATCHED_BINS, "malformed", "out_of_day", "write_only")
    rows = []
    for stream, one in bins.items():
        counts = [one["read"], one["matched"], *(one["unmatched"][name] for name in UNMATCHED_BINS)]
        rows.append([stream, *counts, *(one[name] for name in ("malformed", "out_of_day", "write_only"))])
    return "\n".join(terminal.table(head, rows, indent=""))
