"""A reconciliation as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmsspark.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.reports import terminal


def table(bins: Mapping[str, Mapping[str, Any]]) -> str:
    """The reconciliation of a manifest as text for a terminal. Streams of jobs have a table with bins of their own."""
    of_jobs = {stream: counts for stream, counts in bins.items() if "repeated" in counts}
    of_accesses = {stream: counts for stream, counts in bins.items() if stream not in of_jobs}
    lines = []
    for some, unmatched, rest in (
        (of_accesses, UNMATCHED_BINS, ("malformed", "out_of_day", "write_only")),
        (of_jobs, UNMATCHED_JOB_BINS, ("malformed", "out_of_day", *JOB_BINS)),
    ):
        rows = [
            [stream, counts["read"], counts["matched"], *(counts["unmatched"][name] for name in unmatched)]
            + [counts[name] for name in rest]
            for stream, counts in some.items()
        ]
        if rows:
            lines += terminal.table(("stream", "read", "matched", *unmatched, *rest), rows, indent="")
    return "\n".join(lines)
