"""Lines over a time or a size as SVG, for pages without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final

from cmsspark.base.text.readable import readable
from cmsspark.pages.charts import SERIES, Chart, si

_WIDTH: Final = 880
_HEIGHT: Final = 220
_LEFT: Final = 64
#: Points of a line at most; of more, the largest in each interval is drawn.
_MOST_POINTS: Final = 400


class WideChart(Chart):
    """A chart of twice the usual width."""

    def svg(self) -> str:
        box = f"0 0 {_WIDTH} {self.height:.0f}"
        style = "width:100%;max-width:none;height:auto"
        label = escape(self.label)
        return (
            f'<svg class="chart" style="{style}" viewBox="{box}" role="img" aria-label="{label}">{self.elements}</svg>'
        )


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    what: str,
    number: Callable[[float], str] = si,
    x_number: Callable[[float], str] = lambda x: f"{x:.0f} s",
    bands: Sequence[tuple[str, float, float]] = (),
    with_points: bool = False,
) -> Chart:
    """Return each series as a line through its (x, y); ``bands``: named ranges of x, such as steps."""
    shown = {name: _thinned(points) for name, points in series.items() if points}
    xs = [x for points in shown.values() for x, _ in points] + [x for _, *ends in bands for x in ends]
    top = max((y for points in shown.values() for _, y in points), default=0) or 1
    if not xs:
        return WideChart('<text class="soft" x="0" y="20">Nothing was measured.</text>', 34, f"{what}: nothing")
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - low) / (high - low) if high > low else 0.5
        return _LEFT + (_WIDTH - _LEFT - 10) * share, 20 + (_HEIGHT - 20) * (1 - y / top)

    parts = []
    for number_of, (name, first, last) in enumerate(bands):
        left, right = place(first, 0)[0], place(last, 0)[0]
        shade = "track" if number_of % 2 else "h0"
        parts.append(
            f'<rect class="{shade}" x="{left:.1f}" y="20" width="{max(0.5, right - left):.1f}" '
            f'height="{_HEIGHT - 20}"/>'
            f'<text class="soft" x="{left + 3:.1f}" y="14">{_text(name)}</text>'
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = place(low, top * share)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="soft end" x="{_LEFT - 6}" y="{y + 4:.1f}">{_text(number(top * share))}</text>')
    for x in dict.fromkeys((low, (low + high) / 2, high)):
        parts.append(f'<text class="soft mid" x="{place(x, 0)[0]:.1f}" y="{_HEIGHT + 18}">{_text(x_number(x))}</text>')
    for index, (name, points) in enumerate(shown.items()):
        parts.append(
            _line(name, [place(*point) for point in points], index, with_points, max(y for _, y in points), number)
        )
    parts.append(_legend(list(shown)))
    summary = "; ".join(
        f"{name} at most {number(max(y for _, y in points))}" for name, points in list(shown.items())[:4]
    )
    return WideChart("".join(parts), _HEIGHT + 40 + 18 * -(-len(shown) // 4), f"{what}: {summary}")


def _line(
    name: str,
    points: Sequence[tuple[float, float]],
    index: int,
    with_points: bool,
    most: float,
    number: Callable[[float], str],
) -> str:
    colour = f"var(--{SERIES[index % len(SERIES)]})"
    dash = ' stroke-dasharray="5 3"' if index >= len(SERIES) else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    text = f"<title>{_text(name)}: at most {_text(number(most))}</title>"
    drawn = f'<polyline points="{path}" style="fill:none;stroke:{colour};stroke-width:2"{dash}>{text}</polyline>'
    if with_points or len(points) == 1:
        drawn += "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{colour}"/>' for x, y in points)
    return drawn


def _legend(names: Sequence[str]) -> str:
    parts = []
    for index, name in enumerate(names):
        x, y = _LEFT + 205 * (index % 4), _HEIGHT + 30 + 18 * (index // 4)
        parts.append(
            f'<rect x="{x}" y="{y}" width="10" height="10" style="fill:var(--{SERIES[index % len(SERIES)]})"/>'
        )
        parts.append(f'<text class="name" x="{x + 15}" y="{y + 9}">{_text(name[:28])}</text>')
    return "".join(parts)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(points) // _MOST_POINTS)
    return [max(points[start : start + step], key=lambda one: one[1]) for start in range(0, len(points), step)]


def _text(value: object) -> str:
    return escape(readable(str(value), lines=False))
