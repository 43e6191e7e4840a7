"""A chart of a page as an SVG picture of its own, on white, for slides and mails; it
needs no browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from cmsspark.apps.dashboard.colours import colours
from cmsspark.apps.dashboard.formats import shown, si
from cmsspark.apps.dashboard.widgets import Chart
from cmsspark.pages.charts import Line, plot
from cmsspark.pages.svg import REST, SERIES, WIDE, Axis, standalone

_PALETTE: Final = (*SERIES, REST)


def svg(chart: Chart, about: str = "") -> str:
    """Return the picture: stacked areas, lines or bars with axes, title and legend."""
    names = list(chart.series)
    kinds = [_PALETTE[number % len(_PALETTE)] for number in colours(names)]
    lines = []
    positions: Sequence[float] = chart.x_values or range(len(chart.labels))
    below: list[float | None] = [0] * len(chart.labels)
    for number, ((name, values), kind) in enumerate(zip(chart.drawn.items(), kinds, strict=True)):
        base: Sequence[float | None] = ()
        if chart.kind in ("stack", "columns"):
            base = below
            values = [
                None if value is None else (low or 0) + value
                for low, value in zip(below, values, strict=True)
            ]
            below = [
                low if value is None else value for low, value in zip(below, values, strict=True)
            ]
        width = 0.8 / len(names) if chart.kind == "bar" else 0.8 if chart.kind == "columns" else 0
        shift = width * (number + 0.5) - 0.4 if chart.kind == "bar" else 0
        points = [(x + shift, value) for x, value in zip(positions, values, strict=True)]
        lines.append(Line(shown(name), points, kind, base, bar=width))
    x, y = _axes(chart, lines, positions or [0])
    if chart.target is not None:
        lines.append(
            Line(
                f"target {_number(chart, chart.target)}",
                [(x.low, chart.target), (x.high, chart.target)],
                "rule",
            )
        )
    drawn = plot(lines, x, y, about=chart.title, width=WIDE, height=330)
    return standalone(drawn, shown(chart.title), shown(about) if about else "")


def _axes(chart: Chart, lines: Sequence[Line], positions: Sequence[float]) -> tuple[Axis, Axis]:
    top = (
        max((value for line in lines for _, value in line.points if value is not None), default=0)
        or 1
    )
    room = 0.5 if chart.kind in ("bar", "columns") or len(positions) == 1 else 0
    marks = [
        (position, shown(label)) for position, label in zip(positions, chart.labels, strict=False)
    ]
    every = -(-len(marks) // 10) if not chart.is_log_x else 1
    x = Axis(
        min(positions) - room,
        max(positions) + room,
        chart.x_title,
        is_log=chart.is_log_x and not room,
        marks=marks[::every],
    )
    return x, Axis(0, max(top, chart.target or 0), chart.y_title, partial(_number, chart))


def _number(chart: Chart, value: float) -> str:
    return f"{value:.3g} %" if chart.unit == "%" else si(value, chart.unit)
