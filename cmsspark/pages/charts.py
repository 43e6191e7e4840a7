"""Charts as SVG, made on the server: bars, stacked days, shares and heat maps.

A chart is text that a page holds as it is, or a file of its own (:func:`standalone`). Colours are classes, so a page
chooses them for light, dark and paper; series differ in the palette of Okabe and Ito, which colour-blind people can
tell apart, and heat maps also print their numbers. All names are escaped.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import cycle
from typing import Final

from cmsspark.base.text.terminal import middle, printable

#: Width in the units of every chart; a page scales it.
WIDTH: Final = 440
#: Classes of series, in the order of use.
SERIES: Final = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")
_SHADES: Final = 7
_PREFIXES: Final = (("Y", 1e24), ("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
#: Size of a label's letters, and the widths of wide, narrow and all other letters as parts of it.
_FONT, _WIDE, _NARROW, _OTHER = 11, 0.8, 0.36, 0.63
_DAYS_HEIGHT: Final = 150

#: Colours of a chart in a file of its own. ``etc/report.css`` has the same as variables, and those of dark pages.
COLOURS: Final[Mapping[str, str]] = {
    "c1": "#0072b2", "c2": "#e69f00", "c3": "#009e73", "c4": "#cc79a7", "c5": "#56b4e9", "c6": "#d55e00",
    "c7": "#7f7f7f", "h0": "#f0f4f8", "h1": "#d3e3f0", "h2": "#a9cbe3", "h3": "#76abd0", "h4": "#3878aa",
    "h5": "#1f6499", "h6": "#0b3f6b", "track": "#eef0f3",
}  # fmt: skip
_TEXT_STYLE: Final = (
    "text{font:12px 'DejaVu Sans','Noto Sans',sans-serif;fill:#1d2733}.soft{fill:#5b6878;font-size:11px}"
    ".end{text-anchor:end}.mid{text-anchor:middle}.name{font-size:11px}.title{font-size:15px;font-weight:bold}"
    ".grid{stroke:#dfe3e8;stroke-width:1}.gap{fill:none;stroke:#5b6878;stroke-dasharray:2 2}.on{fill:#ffffff}"
)
#: Room at the right of a heat map for the leaning name of its last column.
_LEANING: Final = 48


@dataclass(frozen=True)
class Chart:
    """A chart: its elements, its height in its own units, and what it says in words."""

    elements: str
    height: float
    label: str

    def svg(self) -> str:
        """Return the chart for a page, which gives it its size and colours."""
        box = f"0 0 {WIDTH} {self.height:.0f}"
        return f'<svg class="chart" viewBox="{box}" role="img" aria-label="{_text(self.label)}">{self.elements}</svg>'


def standalone(chart: Chart, title: str, subtitle: str) -> str:
    """Return the chart as an SVG file of its own, with its title, on white."""
    colours = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    lines = textwrap.wrap(subtitle, 68)
    below = 40 + 16 * len(lines)
    height = chart.height + below
    said = "".join(f'<text class="soft" x="0" y="{36 + 16 * i}">{_text(line)}</text>' for i, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -8 {WIDTH + 32} {height + 16:.0f}" '
        f'width="{WIDTH + 32}" height="{height + 16:.0f}" role="img" aria-label="{_text(title)}">'
        f"<style>{_TEXT_STYLE}{colours}</style>"
        f'<rect x="-16" y="-8" width="{WIDTH + 32}" height="{height + 16:.0f}" fill="#ffffff"/>'
        f'<text class="title" x="0" y="16">{_text(title)}</text>'
        f'{said}<g transform="translate(0 {below})">{chart.elements}</g></svg>\n'
    )


def si(value: float | None) -> str:
    """Return a number with an SI prefix: ``1.2 M``; small whole numbers as they are, a dash for None.

    Example:
        >>> si(1_234_567), si(980), si(0.25), si(None)
        ('1.23 M', '980', '0.25', '–')
    """
    if value is None:
        return "–"
    for prefix, size in _PREFIXES:
        # What rounds up to 1,000 of a prefix has the next one.
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g}"


def bars(rows: Sequence[tuple[str, float]], number: Callable[[float], str] = si, *, what: str) -> Chart:
    """Return one bar a row, its name above it and its number at the right.

    ``what``: what the numbers are, with the unit.
    """
    top = max([value for _, value in rows], default=0) or 1
    parts = []
    for index, (name, value) in enumerate(rows):
        y = 34 * index
        parts.append(
            f"<g><title>{_text(name)}: {_text(number(value))}</title>"
            f'<text class="name" x="0" y="{y + 12}">'
            f"{_text(_fitting(name, WIDTH - 10 - text_width(number(value))))}</text>"
            f'<text class="name end" x="{WIDTH}" y="{y + 12}">{_text(number(value))}</text>'
            f'<rect class="track" x="0" y="{y + 17}" width="{WIDTH}" height="9" rx="2"/>'
            f'<rect class="c1" x="0" y="{y + 17}" width="{max(1.0, WIDTH * value / top):.1f}" height="9" rx="2"/></g>'
        )
    said = "; ".join(f"{name} {number(value)}" for name, value in rows[:3])
    return Chart("".join(parts) or _nothing(), max(34 * len(rows), 34), f"{what}: {said or 'nothing'}")


def stacked_days(
    days: Sequence[date | str],
    series: Mapping[str, Sequence[float | None]],
    number: Callable[[float], str] = si,
    *,
    what: str,
    unit: str = "day",
) -> Chart:
    """Return a column a day (or month), its series stacked; a day without any value is drawn as a gap."""
    totals = [_total([values[index] for values in series.values()]) for index in range(len(days))]
    ticks = _ticks(max([total or 0 for total in totals], default=0))
    top, left = ticks[-1], 46
    step = (WIDTH - left) / max(len(days), 1)
    parts = []
    for tick in ticks:
        y = _DAYS_HEIGHT - _DAYS_HEIGHT * tick / top + 8
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="soft end" x="{left - 6}" y="{y + 4:.1f}">{_text(number(tick))}</text>')
    width = max(step - min(2.0, step / 4), 0.5)
    for index, day in enumerate(days):
        x = left + step * index
        if totals[index] is None:
            parts.append(
                f'<rect class="gap" x="{x:.1f}" y="{_DAYS_HEIGHT - 6}" width="{width:.1f}" height="14">'
                f"<title>{day}: not stored</title></rect>"
            )
            continue
        parts.append(_column(day, index, series, (x, width, top), number))
    parts.append(_day_labels(days, left, step))
    gap = ["not stored"] if None in totals else []
    kinds = [kind for kind, _ in zip(cycle(SERIES), series, strict=False)]
    parts.append(_legend([*series, *gap], 0, _DAYS_HEIGHT + 44, [*kinds, *("gap" for _ in gap)] or SERIES))
    height = _DAYS_HEIGHT + 40 + 20 * -(-(len(series) + len(gap)) // 4)
    known = [total for total in totals if total is not None]
    said = f"{days[0]} to {days[-1]}, at most {number(max(known, default=0))} a {unit}" if days else "nothing"
    return Chart("".join(parts), height, f"{what}: {said}")


def shares(
    rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], classes: Sequence[str], *, what: str
) -> Chart:
    """Return one bar a row, whose parts are shares of its whole; the last part is what is not known."""
    parts = []
    for index, (name, values) in enumerate(rows):
        y, x, whole = 36 * index, 0.0, sum(values) or 1
        first = _most_known(values, names)
        parts.append(f'<text class="name" x="0" y="{y + 12}">{_text(name)}</text>')
        parts.append(f'<text class="name end" x="{WIDTH}" y="{y + 12}">{_text(first)}</text>')
        for part, value, kind in zip(names, values, classes, strict=True):
            width = WIDTH * value / whole
            parts.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{y + 17}" width="{width:.1f}" height="12">'
                f"<title>{_text(name)}, {_text(part)}: {value:,.0f} ({value / whole:.1%})</title></rect>"
            )
            x += width
    parts.append(_legend(names, 0, 36 * len(rows) + 16, classes))
    said = "; ".join(f"{name} {_most_known(values, names)}" for name, values in rows)
    return Chart("".join(parts), 36 * len(rows) + 26, f"{what}: {said or 'nothing'}")


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[str, str], float], *, what: str
) -> Chart:
    """Return a cell for each row and column, in a stronger colour for more, on a logarithmic scale, with its number in
    it.
    """
    left, head, high = 128, 74, 22
    # The names of columns lean to the right: the last ones need room there.
    width = (WIDTH - left - _LEANING) / max(len(columns), 1)
    shown = [value for value in (values.get((row, column)) for row in rows for column in columns) if value]
    parts = []
    for index, name in enumerate(columns):
        x = left + width * (index + 0.5)
        parts.append(
            f'<text class="soft" transform="translate({x:.1f} {head - 6}) rotate(-40)">'
            f"{_text(middle(printable(name), 14))}</text>"
        )
    for line, row in enumerate(rows):
        y = head + high * line
        parts.append(f'<text class="name end" x="{left - 6}" y="{y + 15}">{_text(_fitting(row, left - 6))}</text>')
        for index, column in enumerate(columns):
            value = values.get((row, column))
            shade = _shade(value, shown)
            x = left + width * index
            said = "nothing" if not value else f"{value:,.0f}"
            parts.append(
                f'<rect class="h{shade}" x="{x:.1f}" y="{y}" width="{width - 1.5:.1f}" height="{high - 1.5}" rx="2">'
                f"<title>{_text(row)}, {_text(column)}: {said}</title></rect>"
            )
            if value:
                kind = "name mid on" if shade > 3 else "name mid dark"
                at = f'x="{x + width / 2 - 1:.1f}" y="{y + 14}"'
                parts.append(f'<text class="{kind}" {at}>{si(value).replace(" ", "")}</text>')
    said = f"{len(rows)} rows and {len(columns)} columns"
    return Chart("".join(parts) or _nothing(), head + high * max(len(rows), 1), f"{what}: {said}")


def _most_known(values: Sequence[float], names: Sequence[str]) -> str:
    """Return the share of the first part, without the last one, which is what nobody knows."""
    known = sum(values[:-1])
    return f"{values[0] / known:.0%} {names[0]}" if known else names[-1]


def _shade(value: float | None, shown: Sequence[float]) -> int:
    """0 for nothing, else 1 for the smallest of the numbers that are shown to 6 for the largest."""
    if not value:
        return 0
    least, most = math.log(min(shown)), math.log(max(shown))
    return _SHADES - 1 if most == least else 1 + round((_SHADES - 2) * (math.log(value) - least) / (most - least))


def _column(
    day: date | str,
    index: int,
    series: Mapping[str, Sequence[float | None]],
    place: tuple[float, float, float],
    number: Callable[[float], str],
) -> str:
    """Return the stacked parts of one day; ``place``: its left side, its width, and the number at the top of the chart.
    """
    x, width, top = place
    parts, base = [], 0.0
    for kind, (name, values) in zip(cycle(SERIES), series.items(), strict=False):
        value = values[index] or 0
        high = _DAYS_HEIGHT * value / top
        y = _DAYS_HEIGHT - base - high + 8
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{high:.1f}">'
            f"<title>{day}, {_text(name)}: {_text(number(value))}</title></rect>"
        )
        base += high
    return "".join(parts)


def _day_labels(days: Sequence[date | str], left: float, step: float) -> str:
    if not days:
        return ""
    y = _DAYS_HEIGHT + 24
    first = f'<text class="soft" x="{left}" y="{y}">{days[0]}</text>'
    if len(days) == 1:
        return first
    return first + f'<text class="soft end" x="{WIDTH}" y="{y}">{days[-1]}</text>'


def _legend(names: Sequence[str], x: float, y: float, classes: Sequence[str] = SERIES) -> str:
    parts = []
    for index, (name, kind) in enumerate(zip(names, cycle(classes), strict=False)):
        at, line = x + 110 * (index % 4), y + 20 * (index // 4)
        parts.append(f'<rect class="{kind}" x="{at}" y="{line - 9}" width="10" height="10" rx="2"/>')
        parts.append(f'<text class="soft" x="{at + 15}" y="{line}">{_text(middle(printable(name), 15))}</text>')
    return "".join(parts)


def _ticks(top: float) -> list[float]:
    """Round whole numbers from 0 to at least ``top``, five or fewer steps: counts have no halves.

    Example:
        >>> _ticks(870), _ticks(2)
        ([0, 200, 400, 600, 800, 1000], [0, 1, 2])
    """
    if top <= 0:
        return [0, 1]
    rough = max(top / 4, 1)
    size = 10 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if size == 1 else (1, 2, 2.5, 5, 10)
    step = next(size * factor for factor in factors if size * factor >= rough * 0.8)
    count = math.ceil(top / step - 1e-9)
    return [step * index for index in range(count + 1)]


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def text_width(text: str) -> float:
    """Return the approximate width of a label, in units of the picture."""
    wide = sum(letter.isupper() or ord(letter) > 0x2000 or letter in "mw@%" for letter in text)
    narrow = sum(letter in "ijlrtfI/|.,:;'!()[] -" for letter in text)
    return _FONT * (_WIDE * wide + _NARROW * narrow + _OTHER * (len(text) - wide - narrow))


def _fitting(name: str, room: float) -> str:
    """Return a name of at most the width ``room``; a wider one loses its middle."""
    text = printable(name)
    count = len(text)
    while text_width(text) > room and count > 3:
        count = min(count - 1, int(count * room / text_width(text)) + 1)
        text = middle(printable(name), count)
    return text


def _nothing() -> str:
    return '<text class="soft" x="0" y="20">nothing to show</text>'


def _text(value: object) -> str:
    return escape(printable(str(value)))
