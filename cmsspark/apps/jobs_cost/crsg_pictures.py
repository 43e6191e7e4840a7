"""The pictures of the C-RSG report: events by month, stacked by data tier, one for each
selection (rule 59).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from cmsspark.base.errors import InputMissing
from cmsspark.pages import charts
from cmsspark.pages.pictures import Picture

TABLE: Final = "crsg_event_counts"
#: Data tiers that have a colour of their own; the rest is one series.
_TIERS: Final = 6
_REST: Final = "other tiers"


def pictures(rows: Iterable[Mapping[str, Any]], since: str | None = None) -> list[Picture]:
    """Return a picture for each selection; ``since``: the first month. Raises
    InputMissing (66) without any row.
    """
    by_selection: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        if (
            row["month"] is not None
            and (since is None or row["month"] >= since)
            and row["events"] is not None
        ):
            months = by_selection.setdefault(row["selection"], {}).setdefault(row["data_tier"], {})
            months[row["month"]] = months.get(row["month"], 0) + row["events"]
    if not by_selection:
        raise InputMissing(
            f"no events of a known month to draw in {TABLE}"
            + (f" since {since}" if since else ""),
            next_step=f"run_spark {TABLE} counts them; give an earlier --since",
        )
    return [_picture(name, tiers) for name, tiers in sorted(by_selection.items())]


def _picture(name: str, tiers: Mapping[str, Mapping[str, int]]) -> Picture:
    present = np.array([month for of_tier in tiers.values() for month in of_tier], "datetime64[M]")
    # All months from the first to the last.
    months = np.arange(present.min(), present.max() + 1).astype(str).tolist()
    by_size = sorted(tiers, key=lambda tier: (-sum(tiers[tier].values()), tier))
    # A series that would be alone in the rest keeps its name.
    shown = by_size if len(by_size) <= _TIERS + 1 else by_size[:_TIERS]
    series: dict[str, list[float | None]] = {
        tier: [float(tiers[tier].get(month, 0)) for month in months] for tier in shown
    }
    if other_tiers := [tier for tier in by_size if tier not in shown]:
        series[_REST] = [
            float(sum(tiers[tier].get(month, 0) for tier in other_tiers)) for month in months
        ]
    chart = charts.stacked_days(months, series, about="events a month by data tier", unit="month")
    about = f"Events of blocks by the month in which DBS got them, {months[0]} to {months[-1]}"
    return Picture(f"event_counts-{name}", f"Events of {name} by month", about, chart)
