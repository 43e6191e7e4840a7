"""Sites that fell silent: a stream had accesses of them on most of the last days, and
has none today.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from functools import lru_cache
from typing import Final

from cmsspark.base.errors import CmssparkError
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import results
from cmsspark.store.job_index import JOBS
from cmsspark.store.part_files import stored_parts
from cmsspark.store.stored_columns import part_rows

#: Days before that are looked at, and on how many of them a site must have reported.
LOOKED_AT: Final = 14
REPORTED: Final = 10
#: Sites that a line names.
_NAMED: Final = 10
_COLUMNS: Final = ("stream", "site_name")


@lru_cache(64)
def _reporting_sites(store: str, job: str, day: date, run: str) -> frozenset[tuple[str, str]]:
    """Return (stream, site) of a stored day; empty where it cannot be read. ``run`` is a
    part of the cache's key.
    """
    name = JOBS[job].tables[0]
    files, schema = LocalFiles(), stored_table(name)
    with suppress(CmssparkError):
        pairs: set[tuple[str, str]] = set()
        for part in stored_parts(files, results.current(files, store, job, name, day), name):
            rows = part_rows(files, part, schema, _COLUMNS).group_by(list(_COLUMNS)).aggregate([])
            pairs.update((row["stream"], row["site_name"]) for row in rows.to_pylist())
        return frozenset(pairs)
    return frozenset()


def silent_sites(store: str, job: str, day: date) -> Mapping[str, list[str]]:
    """Return the sites of each stream that reported on ten of the fourteen days before
    ``day`` and not on it. A stream without any access on the day is left out: that is
    another fault.
    """
    if not JOBS[job].tables or not set(_COLUMNS) <= set(stored_table(JOBS[job].tables[0]).names):
        return {}
    today = _of_day(store, job, day)
    counts = Counter(
        pair
        for back in range(1, LOOKED_AT + 1)
        for pair in _of_day(store, job, day - timedelta(days=back))
    )
    streams = {stream for stream, _ in today}
    silent: dict[str, list[str]] = {}
    for (stream, site), count in sorted(counts.items()):
        is_usual = count >= REPORTED and site != "unknown"
        if is_usual and stream in streams and (stream, site) not in today:
            silent.setdefault(stream, []).append(site)
    return silent


def _of_day(store: str, job: str, day: date) -> frozenset[tuple[str, str]]:
    with suppress(CmssparkError):
        run, _, _ = results.current_run(LocalFiles(), store, job, day)
        return _reporting_sites(store, job, day, run)
    return frozenset()


def newest_stored(store: str, job: str, days: Iterable[date]) -> date | None:
    """Return the newest of the days of which the job has a result."""
    for day in sorted(days, reverse=True):
        with suppress(CmssparkError):
            results.current_run(LocalFiles(), store, job, day)
            return day
    return None


def silent_lines(store: str, job: str, day: date) -> list[str]:
    """Return a line for each stream whose sites fell silent on a day."""
    lines = []
    for stream, sites in silent_sites(store, job, day).items():
        more = len(sites) - _NAMED
        names = ", ".join(sites[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        lines.append(
            f"{day} {job}: {stream} has no access of {names}, which had some on {REPORTED} "
            f"or more of the {LOOKED_AT} days before"
        )
    return lines
