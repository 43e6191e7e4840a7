"""Sites that fell silent: a stream had records of them on the days before, and has none,
or hardly any, today (rule 73).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, Final

from cmsspark.base.errors import CmssparkError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.store import results
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.part_files import stored_parts
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import part_rows
from cmsspark.store.stored_days import partial_reasons

#: Days before that are looked at, and how many of them must be stored.
LOOKED_AT: Final = 14
_ENOUGH: Final = 7
#: A site with so many records on a usual day is thin below a tenth of them.
_THIN_FROM: Final = 100
_THIN: Final = 10
#: A site that was seen on so many days may fell silent anew.
_SEEN: Final = 3
#: The share of a stream that the sites which fell silent must exceed to be told; one of
#: these is always told.
_SHARE: Final = 0.02
_ALWAYS: Final = "T1_"
_UNKNOWN: Final = "unknown"
#: Sites that a line names.
_NAMED: Final = 10
_KEYS: Final = ("stream", "site_name")
_COUNT: Final = "nacc"
Counts = Mapping[tuple[str, str], int]


@lru_cache(64)
def _local_counts(store: str, job: str, day: date, run: str) -> Counts:
    """Return the records by stream and site of a stored day of this host. ``run`` is a
    part of the cache's key.
    """
    files, name = LocalFiles(), JOBS[job].tables[0]
    return _count(files, results.current(files, store, job, name, day), name)


def _count(files: Files, current: CurrentTable, name: str) -> Counts:
    """Return the records by stream and site: those of the rows, and those that match
    nothing, which the manifest has. Days that an old version counted lack the latter.
    """
    counts = {
        (stream, site): count
        for stream, by_site in (current.manifest.unmatched_sites or {}).items()
        for site, count in by_site.items()
    }
    for part in stored_parts(files, current, name):
        rows = part_rows(files, part, stored_table(name), (*_KEYS, _COUNT))
        for row in rows.group_by(list(_KEYS)).aggregate([(_COUNT, "sum")]).to_pylist():
            key = row["stream"], row["site_name"]
            counts[key] = counts.get(key, 0) + (row[f"{_COUNT}_sum"] or 0)
    return counts


def silent_sites(
    store: str, job: str, day: date, files: Files | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of ``schemas/tables/silent_sites.yaml`` without ``day``, and a
    note that says why there are none, if days are missing, or of which days unmatched
    records are not known.

    ``files``: of a store that is not on this host's disks.
    """
    opened, name = files or LocalFiles(), JOBS[job].tables[0]
    stored: dict[date, CurrentTable] = {}
    for back in range(LOOKED_AT + 1):
        with suppress(CmssparkError):
            of_day = day - timedelta(days=back)
            stored[of_day] = results.current(opened, store, job, name, of_day)
    partial = partial_reasons({of_day: current.manifest for of_day, current in stored.items()})
    counts: dict[date, Counts] = {}
    for of_day, current in stored.items():
        if of_day in partial:
            continue
        with suppress(CmssparkError):
            counts[of_day] = (
                _local_counts(store, job, of_day, current.manifest.rows_run)
                if files is None
                else _count(opened, current, name)
            )
    before = sorted(counts.keys() - {day})
    if day not in counts:
        reason = partial.get(day)
        return [], f"{day} is partial: {reason}" if reason else f"{day} is not stored"
    if len(before) < _ENOUGH:
        return [], (
            f"{len(before)} of the {LOOKED_AT} days before {day} are stored and whole, "
            f"{_ENOUGH} are needed"
        )
    old = [of_day for of_day in sorted(counts) if stored[of_day].manifest.unmatched_sites is None]
    note = (
        f"{pluralize(len(old), 'day')} from {old[0]} on, which an earlier version counted, "
        "without records that match no dataset; cmsspark daily --force counts days again"
        if old
        else ""
    )
    return _rows(day, counts, before), note


def _rows(
    day: date, counts: Mapping[date, Counts], before: Sequence[date]
) -> list[dict[str, Any]]:
    """Return the sites that are silent or thin on a day. ``before``: the days that are
    compared, in order.
    """
    pairs = sorted({pair for of_day in counts.values() for pair, count in of_day.items() if count})
    seen = {pair: [of_day for of_day in before if counts[of_day].get(pair)] for pair in pairs}
    usual = {
        pair: _lower_median([counts[of_day][pair] for of_day in days])
        for pair, days in seen.items()
    }
    totals: dict[str, int] = {}
    for (stream, _), count in usual.items():
        totals[stream] = totals.get(stream, 0) + count
    rows = []
    for stream, site in pairs:
        pair, days = (stream, site), seen[stream, site]
        today = counts[day].get(pair, 0)
        is_silent = not today
        is_thin = usual[pair] >= _THIN_FROM and today * _THIN < usual[pair]
        if site == _UNKNOWN or not (is_silent or is_thin):
            continue
        rows.append(
            {
                "stream": stream,
                "site_name": site,
                "kind": "silent" if is_silent else "thin",
                "seen_days": len(days),
                "stored_days": len(before),
                "today": today,
                "usual": usual[pair],
                "last_day": days[-1],
                "silent_days": (day - days[-1]).days if is_silent else 0,
                "is_new": is_silent and days[-1] == before[-1] and len(days) >= _SEEN,
                "share": usual[pair] / totals[stream],
            }
        )
    return rows


def _lower_median(counts: Sequence[int]) -> int:
    return sorted(counts)[(len(counts) - 1) // 2] if counts else 0


def newest_stored(store: str, job: str, days: Iterable[date]) -> date | None:
    """Return the newest of the days of which the job has a result."""
    for day in sorted(days, reverse=True):
        with suppress(CmssparkError):
            results.current_run(LocalFiles(), store, job, day)
            return day
    return None


def silent_lines(store: str, job: str, day: date, *, only_warnings: bool = False) -> list[str]:
    """Return a line for each stream whose sites fell silent on a day.
    ``only_warnings``: of those alone where the sites have more than 2 % of the stream's
    records, or one is a T1.
    """
    tables = JOBS[job].tables
    if not tables or not {*_KEYS, _COUNT} <= set(stored_table(tables[0]).names):
        return []  # the table does not say how many records a stream has of a site
    by_stream: dict[str, list[dict[str, Any]]] = {}
    for row in silent_sites(store, job, day)[0]:
        if row["is_new"]:
            by_stream.setdefault(row["stream"], []).append(row)
    lines = []
    for stream, rows in by_stream.items():
        share, sites = sum(row["share"] for row in rows), [row["site_name"] for row in rows]
        is_warning = share > _SHARE or any(site.startswith(_ALWAYS) for site in sites)
        if only_warnings and not is_warning:
            continue
        more = len(sites) - _NAMED
        names = ", ".join(sites[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        lines.append(
            f"{day} {job}: {stream} has no record of {names}, usually {share:.1%} of its records"
        )
    return lines
