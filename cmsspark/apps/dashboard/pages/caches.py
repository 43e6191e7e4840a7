"""Caches: what caches of several sizes would have missed at a site, by policy, from the
stored comparison.
"""

from __future__ import annotations

from typing import Any, Final

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest
from cmsspark.apps.dashboard.selection import choice_parameter
from cmsspark.apps.dashboard.site_use import TARGET

_COLUMNS: Final = (
    ui.Column("policy", "Policy"),
    ui.Column("capacity_share", "Cache, of all bytes", "share"),
    ui.Column("capacity_bytes", "Cache", "bytes"),
    ui.Column("missed", "Bytes missed", "share", "of all requested bytes"),
    ui.Column("against_lru", "Against LRU", "text", "missed bytes against those of LRU"),
    ui.Column(
        "bound",
        "Bound",
        "share",
        "no policy misses fewer bytes; it knows the future; only with --bound",
    ),
    ui.Column("missed_count", "Requests missed", "count"),
    ui.Column("request_count", "Requests", "count"),
    ui.Column("missed_bytes", "Missed", "bytes"),
)


_ABOUT: Final = f"The dashed line is at {TARGET:.0%} of the bytes: a usual target for a cache."


def view(request: PageRequest) -> ui.Content:
    """Return the page of a stored period and a site."""
    periods = request.values(
        "SELECT period FROM cache_comparison GROUP BY period ORDER BY max(last_day), period"
    )
    if not periods:
        note = ui.Note(
            "No comparison of caches is stored. Run: run_spark cache_comparison --month last"
        )
        return ui.Content("Caches", [], notes=[note])
    period = choice_parameter(request.parameters, "period", periods, periods[-1])
    sites = request.values(
        "SELECT site_name FROM cache_comparison WHERE period = ? GROUP BY site_name "
        "ORDER BY site_name <> 'all', site_name",
        [period],
    )
    site = choice_parameter(request.parameters, "site", sites, sites[0])
    result = request.database.query(
        "SELECT policy, capacity_share, capacity_bytes, missed_bytes / requested_bytes AS missed, "
        "missed_bytes / nullif(lru_missed_bytes, 0) - 1 AS against_lru, least_missed_bytes / requested_bytes AS bound, "
        "missed_count, request_count, missed_bytes, footprint_bytes, compulsory_count FROM cache_comparison "
        "WHERE period = ? AND site_name = ? ORDER BY capacity_share, missed, policy",
        [period, site],
    )
    name = "all sites together, as if they shared one cache" if site == "all" else ui.shown(site)
    controls = [
        ui.Control("period", "Period", period, [(entry, entry) for entry in reversed(periods)]),
        ui.Control(
            "site",
            "Site",
            site,
            [
                (entry, "all sites together" if entry == "all" else ui.shown(entry))
                for entry in sites
            ],
        ),
    ]
    sections = [
        ui.Section(f"Misses by size: {name}", [_figures(result.rows), _chart(result)], _ABOUT)
    ]
    about = "A request is a dataset that was read there on a day, with its whole size; caches are cold at the start."
    partial = [
        entry.run
        for entry in request.database.stored("cache_comparison")
        if entry.interval.isoformat() == period and entry.partial_reason
    ]
    text = f"Days of {period} are left out or partial: missing_days and partial_days in the manifest of run"
    notes = [ui.Note(f"{text} {ui.shown(run)} name them.", "warn") for run in partial]
    return ui.Content("Caches", sections, about, controls, notes)


def _figures(rows: list[tuple[Any, ...]]) -> ui.Figures:
    requests, footprint, compulsory = rows[0][7], rows[0][9], rows[0][10]
    return ui.Figures(
        [
            ui.Figure("Requests", f"{requests:,}"),
            ui.Figure("First requests", f"{compulsory / requests:.1%}", "any cache misses them"),
            ui.Figure("All bytes", ui.si(footprint, "B"), f"{footprint:,} B"),
        ]
    )


def _chart(result: Any) -> ui.Chart:
    capacities = {row[1]: row[2] for row in result.rows}
    shares = sorted(capacities)
    sizes = [capacities[share] for share in shares]
    missed = {(row[0], row[1]): round(100 * row[3], 1) for row in result.rows}
    bound = {row[1]: round(100 * row[5], 1) for row in result.rows if row[5] is not None}
    policies = sorted({row[0] for row in result.rows})
    series = {policy: [missed.get((policy, share)) for share in shares] for policy in policies}
    if bound:
        series["bound"] = [bound.get(share) for share in shares]
    shown_rows = [
        (*row[:4], "–" if row[4] is None else f"{row[4]:+.1%}", *row[5:9]) for row in result.rows
    ]
    table = ui.Table(
        "caches", _COLUMNS, shown_rows, "Misses by size and policy", lambda: result.table
    )
    return ui.Chart(
        "misses",
        "Bytes missed by the size of the cache",
        "line",
        [ui.si(size, "B") for size in sizes],
        series,
        "%",
        "Size of the cache",
        "Bytes missed",
        is_log_x=True,
        table=table,
        x_values=sizes,
        target=100 * TARGET,
    )


PAGE = PageDefinition("Caches", "What a cache would have missed.", view, needs_use=False)
