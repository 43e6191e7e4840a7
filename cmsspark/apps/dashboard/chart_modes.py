"""How values over time are drawn: as sums on each other, as lines beside each other, or as shares of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cmsspark.apps.dashboard.widgets import Chart

MODES: Final[Mapping[str, str]] = {"sum": "sums", "line": "lines", "share": "shares"}


def in_mode(chart: Chart, mode: str) -> Chart:
    """Return the chart in a mode. What does not add up, such as users, has no sums and no shares."""
    if chart.kind != "stack" or mode == "sum":
        return chart
    if mode == "line":
        return replace(chart, kind="line")
    totals = [sum(value or 0 for value in step) for step in zip(*chart.series.values(), strict=True)]
    shares = {
        name: [
            None if value is None or not total else 100 * value / total
            for value, total in zip(values, totals, strict=True)
        ]
        for name, values in chart.series.items()
    }
    return replace(chart, series=shares, unit="%", y_title=f"Share of {chart.y_title[:1].lower()}{chart.y_title[1:]}")
