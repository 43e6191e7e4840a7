"""What lies at a site and what it will need: unused volume by age, the size of a cache,
the forecast.
"""

from __future__ import annotations

from typing import Final

from cmsspark.apps.dashboard import site_use
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.widgets import Figure, si
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.query.database import Database
from cmsspark.store.stored_columns import REPLICA_TABLES

#: Weeks without a read at the site, of each age.
AGES: Final = (4, 12, 26, 52)
#: Share of requested bytes that a cache may miss.
TARGET: Final = 0.2


def age_figures(snapshot: Snapshot, database: Database, site: str, kind: str) -> list[Figure]:
    """Return the replicas at a site by weeks without a read there; no age that is
    longer than the stored days.
    """
    newest = database.newest(REPLICA_TABLES)
    if newest is None:
        return []
    as_of, table = newest
    last = site_use.last_days(snapshot, site)
    replicas = database.query(
        f"SELECT dataset_name, present_bytes FROM {table} "
        "WHERE day = ? AND site_name = ? AND kind = ? AND present_bytes > 0",
        [as_of, site, kind],
    ).rows
    last_day = snapshot.days[-1]
    recorded = (last_day - snapshot.days[0]).days + 1
    figures = []
    for weeks in (weeks for weeks in AGES if 7 * weeks <= recorded):
        unread = [
            size
            for name, size in replicas
            if name not in last or (last_day - last[name]).days >= 7 * weeks
        ]
        size, datasets = sum(unread), pluralize(len(unread), "dataset")
        figures.append(
            Figure(
                f"Unread for {pluralize(weeks, 'week')}", si(size, "B"), f"{size:,} B", datasets
            )
        )
    return figures


def cache_figure(database: Database, site: str) -> Figure | None:
    """Return the smallest compared cache that misses at most ``TARGET``; None where
    none is stored.
    """
    rows = database.query(
        "SELECT period, policy, capacity_bytes, missed_bytes / requested_bytes AS missed FROM cache_comparison "
        "WHERE site_name = ? AND requested_bytes > 0 QUALIFY last_day = max(last_day) OVER () "
        "ORDER BY capacity_bytes, missed, policy",
        [site],
    ).rows
    if not rows:
        return None
    label = f"Cache that misses {TARGET:.0%} of bytes"
    for period, policy, capacity, missed in rows:
        if missed <= TARGET:
            return Figure(
                label,
                si(capacity, "B"),
                f"{capacity:,} B",
                f"{policy}, misses {missed:.1%} in {period}",
            )
    largest = rows[-1][2]
    return Figure(
        label,
        f"> {si(largest, 'B')}",
        f"{largest:,} B",
        f"the largest that was compared, in {rows[-1][0]}",
    )
