"""A chart of a page as an SVG picture of its own, on white, for slides and mails; it needs no browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from flask import Response

from cmsspark.apps.dashboard.colours import colours
from cmsspark.apps.dashboard.formats import shown, si
from cmsspark.apps.dashboard.widgets import Chart, Content, Fold
from cmsspark.base.errors import InputMissing

#: The palette of ``static/dashboard.css`` on light pages.
_PALETTE: Final = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7c00", "#5e3c99",
    "#117733", "#b2182b", "#4d4d9f", "#c49c94", "#2f4b4f", "#e377c2", "#8a939d",
)  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 960, 360, 84, 56, 20
_LABELS, _COLUMNS = 10, 4


def answer(content: Content, name: str, stem: str) -> Response:
    """Return the picture of a chart of a page. Raises InputMissing (66) where it has none of that name."""
    charts = {chart.name: chart for section in content.sections for chart in _charts(section.items)}
    if name not in charts:
        raise InputMissing("there is no such chart on this page", found=", ".join(charts) or "none")
    headers = {"Content-Disposition": f'attachment; filename="{stem}-{name}.svg"'}
    return Response(svg(charts[name], content.about), headers=headers, content_type="image/svg+xml")


def svg(chart: Chart, about: str = "") -> str:
    """Return the picture: stacked areas, lines or bars with axes, title and legend."""
    rows = _stacked(chart) if chart.kind == "stack" else [list(values) for values in chart.series.values()]
    top = max((value for row in rows for value in row if value is not None), default=0) or 1
    legend = -(-len(chart.series) // _COLUMNS) * _LINE if len(chart.series) > 1 else 0
    height = _TOP + _HEIGHT + 60 + legend
    parts = [*_axes(chart, top), *_marks(chart, rows, top), *_legend(chart)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="DejaVu Sans, Noto Sans, sans-serif" font-size="12" fill="#1b2530">'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
        f'<text x="12" y="22" font-size="16" font-weight="bold">{_text(chart.title)}</text>'
        f'<text x="12" y="40" fill="#525f6d">{_text(about)}</text>{"".join(parts)}</svg>\n'
    )


def _stacked(chart: Chart) -> list[list[float | None]]:
    """Return the upper edge of each series."""
    edges: list[list[float | None]] = []
    below = [0.0] * len(chart.labels)
    for values in chart.series.values():
        edges.append([None if value is None else base + value for base, value in zip(below, values, strict=True)])
        below = [base + (value or 0) for base, value in zip(below, values, strict=True)]
    return edges


def _axes(chart: Chart, top: float) -> Iterator[str]:
    for step in range(5):
        y = _y(top * step / 4, top)
        unit = chart.unit if chart.unit != "%" else ""
        label = f"{top * step / 4:.3g} %" if chart.unit == "%" else si(top * step / 4, unit)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dfe3e8"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_text(label)}</text>'
    every = -(-len(chart.labels) // _LABELS)
    for number, label in enumerate(chart.labels):
        if number % every == 0:
            x, y = _x(chart, number), _TOP + _HEIGHT + 16
            yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{_text(label)}</text>'
    middle = (_LEFT + _WIDTH) / 2
    about = f'text-anchor="middle" fill="#525f6d">{_text(chart.x_title)}'
    yield f'<text x="{middle}" y="{_TOP + _HEIGHT + 36}" {about}</text>'


def _marks(chart: Chart, rows: Sequence[Sequence[float | None]], top: float) -> Iterator[str]:
    names = list(chart.series)
    painted = [_PALETTE[number % len(_PALETTE)] for number in colours(names)]
    if chart.kind == "bar":
        yield from _bars(chart, rows, top, painted)
        return
    for number in reversed(range(len(rows))):
        for run in _runs(rows[number]):
            points = [f"{_x(chart, n):.1f},{_y(rows[number][n] or 0, top):.1f}" for n in run]
            if chart.kind == "stack":
                below = rows[number - 1] if number else [0] * len(chart.labels)
                base = [f"{_x(chart, n):.1f},{_y(below[n] or 0, top):.1f}" for n in reversed(run)]
                yield f'<polygon points="{" ".join([*points, *base])}" fill="{painted[number]}" fill-opacity="0.75"/>'
            yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{painted[number]}" stroke-width="2"/>'


def _bars(chart: Chart, rows: Sequence[Sequence[float | None]], top: float, painted: Sequence[str]) -> Iterator[str]:
    room = (_WIDTH - 12 - _LEFT) / max(1, len(chart.labels))
    width = 0.8 * room / max(1, len(rows))
    for number, row in enumerate(rows):
        for position, value in enumerate(row):
            if value:
                x, y = _LEFT + room * position + 0.1 * room + width * number, _y(value, top)
                size = f'width="{width:.1f}" height="{_TOP + _HEIGHT - y:.1f}"'
                yield f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{painted[number]}"/>'


def _runs(row: Sequence[float | None]) -> list[list[int]]:
    """Return positions of values without a gap between them."""
    runs: list[list[int]] = []
    for number, value in enumerate(row):
        if value is None:
            continue
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _legend(chart: Chart) -> Iterator[str]:
    names = list(chart.series)
    if len(names) < 2:
        return
    for number, (name, colour) in enumerate(zip(names, colours(names), strict=True)):
        x = 12 + (number % _COLUMNS) * (_WIDTH - 24) / _COLUMNS
        y = _TOP + _HEIGHT + 56 + number // _COLUMNS * _LINE
        yield f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12" fill="{_PALETTE[colour % len(_PALETTE)]}"/>'
        yield f'<text x="{x + 18:.0f}" y="{y}">{_text(name)}</text>'


def _x(chart: Chart, number: int) -> float:
    room, count = _WIDTH - 12 - _LEFT, len(chart.labels)
    if chart.kind == "bar":
        return _LEFT + room * (number + 0.5) / max(1, count)
    return _LEFT + room * (number / (count - 1) if count > 1 else 0.5)


def _y(value: float, top: float) -> float:
    return _TOP + _HEIGHT - _HEIGHT * value / top


def _charts(items: Sequence[object]) -> Iterator[Chart]:
    for item in items:
        if isinstance(item, Chart):
            yield item
        elif isinstance(item, Fold):
            yield from _charts(item.items)


def _text(text: str) -> str:
    return escape(shown(text)) if text else ""
