"""Charts, drawn on the server: bars, stacked days, shares, heat maps, and lines or
areas between axes.

A chart is text that a page holds as it is, or a file of its own
(:func:`cmsspark.pages.svg.standalone`). Heat maps also print their numbers. All names
are escaped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import cycle
from typing import Any, Final, TypeVar

import msgspec

from cmsspark.base.text.terminal import middle, printable
from cmsspark.pages.svg import (
    SERIES,
    SHADES,
    WIDTH,
    Axis,
    Chart,
    Frame,
    fitting,
    hint,
    legend,
    round_ticks,
    short,
    si,
    tag,
    text,
    text_width,
)

T = TypeVar("T")
#: Room at the right of a heat map for the leaning name of its last column.
_LEANING: Final = 48
#: Lines with a point at each value have at most so many.
_FEW_POINTS: Final = 15


def bars(rows: Sequence[tuple[str, float]], *, about: str) -> Chart:
    """Return one bar a row, its name above it and its number at the right.

    ``about``: what the numbers are, with the unit.
    """
    top = max([value for _, value in rows], default=0) or 1
    parts: list[str] = []
    for index, (name, value) in enumerate(rows):
        y, count = 34 * index, si(value)
        parts += (
            f"<g>{hint(f'{name}: {count}')}",
            text(0, y + 12, fitting(name, WIDTH - 10 - text_width(count)), "name"),
            text(WIDTH, y + 12, count, "name end"),
            tag("rect", class_="track", x=0, y=y + 17, width=WIDTH, height=9, rx=2),
            tag(
                "rect",
                class_="c1",
                x=0,
                y=y + 17,
                width=max(1.0, WIDTH * value / top),
                height=9,
                rx=2,
            ),
            "</g>",
        )
    largest = "; ".join(f"{name} {si(value)}" for name, value in rows[:3])
    return Chart(
        "".join(parts) or _nothing(), max(34 * len(rows), 34), f"{about}: {largest or 'nothing'}"
    )


def stacked_days(
    days: Sequence[date | str],
    series: Mapping[str, Sequence[float | None]],
    *,
    about: str,
    unit: str = "day",
) -> Chart:
    """Return a column a day (or month), its series stacked; a day without any value is
    drawn as a gap.
    """
    totals = [
        sum_known([values[index] for values in series.values()]) for index in range(len(days))
    ]
    ticks = round_ticks(0, max([total or 0 for total in totals], default=0))
    kinds = [kind for kind, _ in zip(cycle(SERIES), series, strict=False)]
    marks = [(index + 0.5, str(days[index])) for index in spread(len(days))]
    x = Axis(0, max(len(days), 1), marks=marks or [(0, "")])
    frame = Frame(
        x, Axis(0, ticks[-1], marks=[(tick, si(tick)) for tick in ticks]), 46, 8, WIDTH - 54, 150
    )
    parts = [frame.axes()]
    step = frame.width / x.high
    size = max(step - min(2.0, step / 4), 0.5)
    for index, day in enumerate(days):
        at = frame.margin + step * index
        if totals[index] is None:
            gap = hint(f"{day}: not stored")
            parts.append(
                tag("rect", gap, class_="gap", x=at, y=frame.bottom - 14, width=size, height=14)
            )
        else:
            values = {name: values[index] or 0 for name, values in series.items()}
            parts.extend(_column(frame, str(day), values, kinds, (at, size)))
    names, gaps = list(series), ["not stored"] if None in totals else []
    keys, height = legend(
        [*names, *gaps], [*kinds, *("gap" for _ in gaps)], WIDTH, frame.bottom + 28
    )
    stored = [total for total in totals if total is not None]
    span = (
        f"{days[0]} to {days[-1]}, at most {si(max(stored, default=0))} a {unit}"
        if days
        else "nothing"
    )
    return Chart("".join([*parts, keys]), frame.bottom + 28 + height, f"{about}: {span}")


def shares(
    rows: Sequence[tuple[str, Sequence[float]]],
    names: Sequence[str],
    classes: Sequence[str],
    *,
    about: str,
) -> Chart:
    """Return one bar a row, whose parts are shares of its sum; the last part is what is not known."""
    parts: list[str] = []
    for index, (name, values) in enumerate(rows):
        y, x, total = 36 * index, 0.0, sum(values) or 1
        parts += (
            text(0, y + 12, name, "name"),
            text(WIDTH, y + 12, _first_share(values, names), "name end"),
        )
        for part, value, kind in zip(names, values, classes, strict=True):
            words = hint(f"{name}, {part}: {value:,.0f} ({value / total:.1%})")
            parts.append(
                tag(
                    "rect",
                    words,
                    class_=kind,
                    x=x,
                    y=y + 17,
                    width=WIDTH * value / total,
                    height=12,
                )
            )
            x += WIDTH * value / total
    keys, height = legend(names, classes, WIDTH, 36 * len(rows) + 8)
    summary = "; ".join(f"{name} {_first_share(values, names)}" for name, values in rows)
    return Chart(
        "".join([*parts, keys]), 36 * len(rows) + 10 + height, f"{about}: {summary or 'nothing'}"
    )


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
    *,
    about: str,
) -> Chart:
    """Return a cell for each row and column with its number, coloured on a logarithmic scale."""
    margin, head, high = 128, 74, 22
    # The names of columns lean to the right: the last ones need room there.
    width = (WIDTH - margin - _LEANING) / max(len(columns), 1)
    visible = [
        value
        for value in (values.get((row, column)) for row in rows for column in columns)
        if value
    ]
    parts = []
    for index, name in enumerate(columns):
        turned = f"translate({margin + width * (index + 0.5):.1f} {head - 6}) rotate(-40)"
        parts.append(f'<g transform="{turned}">{text(0, 0, middle(printable(name), 14))}</g>')
    for line, row in enumerate(rows):
        parts.append(
            text(margin - 6, head + high * line + 15, fitting(row, margin - 6), "name end")
        )
        for index, column in enumerate(columns):
            value = values.get((row, column))
            words = f"{row}, {column}: {f'{value:,.0f}' if value else 'nothing'}"
            label = short(value) if value else ""
            box = (margin + width * index, head + high * line, width - 1.5, high - 1.5)
            parts.append(cell(box, _shade(value, visible), words, [label] if value else []))
    summary = f"{len(rows)} rows and {len(columns)} columns"
    return Chart(
        "".join(parts) or _nothing(), head + high * max(len(rows), 1), f"{about}: {summary}"
    )


def rank_names(cells: Mapping[tuple[str, str], int], side: int) -> list[str]:
    """Return the rows (0) or columns (1) of a heat map, the largest sum first."""
    sums = Counter[str]()
    for key, count in cells.items():
        sums[key[side]] += count
    return sorted(sums, key=lambda name: (-sums[name], name))


def cell(
    box: tuple[float, float, float, float], shade: int, words: str, labels: Sequence[str]
) -> str:
    """Return a cell of a heat map with lines of text in its middle. ``box``: x, y, width, height."""
    x, y, width, height = box
    kind = "name mid on" if shade > 3 else "name mid dark"
    first = y + height / 2 + 4 - 8 * (len(labels) - 1)
    inside = [
        text(x + width / 2, first + 16 * number, label, kind)
        for number, label in enumerate(labels)
    ]
    shape = tag(
        "rect", hint(words), class_=SHADES[shade], x=x, y=y, width=width, height=height, rx=2
    )
    return shape + "".join(inside)


class Line(msgspec.Struct, frozen=True):
    """A series between axes. A y that is None leaves a gap.

    ``base``: the lower edge of an area or of bars. ``errors``: (x, lower end, upper
    end) of error bars. ``bar``: the width of bars, in units of x, that are drawn
    instead of a line. ``is_rule``: a bound or a level, not a series.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    kind: str = ""
    base: Sequence[float | None] = ()
    errors: Sequence[tuple[float, float, float]] = ()
    bar: float = 0
    has_dots: bool = False
    is_rule: bool = False


def plot(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    about: str,
    width: int = WIDTH,
    height: int = 220,
    bands: Sequence[tuple[str, float, float]] = (),
) -> Chart:
    """Return lines, areas or bars between two axes, with a legend. ``bands``: named
    ranges of x, such as steps.
    """
    margin = 10 + max((text_width(words) for _, words in y.ticks()), default=30)
    top = 8 + 18 * bool(bands) + 18 * bool(y.title)
    frame = Frame(x, y, margin, top, width - margin - 8, height)
    parts = [_band(frame, number, band) for number, band in enumerate(bands)]
    parts.append(frame.axes())
    kinds = [line.kind or _kind(number, line) for number, line in enumerate(lines)]
    parts += [
        part for line, kind in zip(lines, kinds, strict=True) for part in _line(frame, line, kind)
    ]
    bottom = frame.bottom + 26 + 17 * bool(x.title)
    named = [(line, kind) for line, kind in zip(lines, kinds, strict=True) if line.name]
    filled = [bool(line.bar or line.base) for line, _ in named]
    names, classes = [line.name for line, _ in named], [kind for _, kind in named]
    keys, high = legend(names, classes, width, bottom, filled)
    return Chart("".join([*parts, keys]), bottom + high, about, width)


def thinned(rows: Sequence[T], size: Callable[[T], float], most: int = 400) -> list[T]:
    """Return at most ``most`` rows for the points of a line: the largest of each interval."""
    step = max(1, -(-len(rows) // most))
    return [max(rows[start : start + step], key=size) for start in range(0, len(rows), step)]


def _kind(number: int, line: Line) -> str:
    """Return the classes of a line: dashes differ, too, so that lines are told apart
    without colours.
    """
    if line.is_rule:
        return f"rule d{number % 4}" if number % 4 else "rule"
    return SERIES[number % 7] + (f" d{number % 4}" if number % 4 else "")


def _band(frame: Frame, number: int, band: tuple[str, float, float]) -> str:
    name, first, last = band
    begin, end = frame.at(first, frame.y.low)[0], frame.at(last, frame.y.low)[0]
    box = {"x": begin, "y": frame.top, "width": max(0.5, end - begin), "height": frame.height}
    return tag("rect", class_="track" if number % 2 else "h0", **box) + text(
        begin + 3, frame.top - 6, name
    )


def _line(frame: Frame, line: Line, kind: str) -> Iterator[str]:
    """Draw a series: its area, its errors, its bars or its line, and points where they are few."""
    colour = kind.split(maxsplit=1)[0]
    for run in _runs([value for _, value in line.points]):
        points = [frame.at(line.points[number][0], line.points[number][1] or 0) for number in run]
        if line.bar:
            size = line.bar * frame.width / ((frame.x.high - frame.x.low) or 1)
            for number, (x, y) in zip(run, points, strict=True):
                base = frame.at(0, (line.base[number] or 0) if line.base else max(frame.y.low, 0))[
                    1
                ]
                yield tag(
                    "rect",
                    class_=colour,
                    x=x - size / 2,
                    y=min(y, base),
                    width=size,
                    height=abs(base - y),
                )
            continue
        if line.base:
            below = [
                frame.at(line.points[number][0], line.base[number] or 0)
                for number in reversed(run)
            ]
            yield tag("polygon", class_=f"area {colour}", points=_path([*points, *below]))
        yield tag("polyline", hint(line.name), class_=f"line {kind}", points=_path(points))
        if line.has_dots or len(points) == 1:
            yield "".join(tag("circle", class_=colour, cx=x, cy=y, r=3) for x, y in points[:400])
    for x, low, high in line.errors:
        (at, lower), (_, upper) = frame.at(x, low), frame.at(x, high)
        yield tag("line", class_=f"error {colour}", x1=at, x2=at, y1=lower, y2=upper)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """Return positions of values without a gap between them."""
    runs: list[list[int]] = []
    for number, value in enumerate(values):
        if value is not None and runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        elif value is not None:
            runs.append([number])
    return runs


def spread(count: int) -> list[int]:
    """Return up to five positions as far from each other as they can be: the first, the
    last, some between.
    """
    parts = next(
        (parts for parts in range(4, 1, -1) if count > 2 * parts and (count - 1) % parts == 0), 1
    )
    return [number * (count - 1) // parts for number in range(min(parts + 1, count))]


def _first_share(values: Sequence[float], names: Sequence[str]) -> str:
    """Return the share of the first part, without the last one, which is what nobody knows."""
    total = sum(values[:-1])
    return f"{values[0] / total:.0%} {names[0]}" if total else names[-1]


def _shade(value: float | None, visible: Sequence[float]) -> int:
    """Return 0 for nothing, else 1 for the smallest of the visible numbers to 6 for the largest."""
    if not value:
        return 0
    least, most = math.log(min(visible)), math.log(max(visible))
    last = len(SHADES) - 1
    return (
        last
        if most == least
        else 1 + round((last - 1) * (math.log(value) - least) / (most - least))
    )


def _column(
    frame: Frame,
    day: str,
    values: Mapping[str, float],
    kinds: Sequence[str],
    box: tuple[float, float],
) -> Iterator[str]:
    """Draw the stacked parts of one day; ``box``: its x and width."""
    y = frame.bottom
    for kind, (name, value) in zip(kinds, values.items(), strict=True):
        high = frame.height * value / frame.y.high
        y -= high
        words = hint(f"{day}, {name}: {si(value)}")
        yield tag("rect", words, class_=kind, x=box[0], y=y, width=box[1], height=high)


def sum_known(values: Iterable[Any]) -> Any:
    """Return the sum of the values that are there; None where there is none."""
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def _nothing() -> str:
    return text(0, 20, "nothing to show")
