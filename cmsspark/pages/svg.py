"""SVG: elements with escaped texts, colours, axes, and charts as pictures of their own.

Colours are classes, so a page chooses them for light, dark and paper. Series differ in
the palette of Okabe and Ito, which colour-blind people can tell apart; the last of the
series is the grey of the rest.
"""

from __future__ import annotations

import math
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final

import msgspec

from cmsspark.base.errors import UsageError
from cmsspark.base.text.terminal import middle, printable

#: Width in the units of an ordinary chart and of a wide one; a page scales them.
WIDTH: Final = 440
WIDE: Final = 880
_SERIES_LIGHT: Final = "0072b2 e69f00 009e73 cc79a7 56b4e9 d55e00 8a7c00 5e3c99 117733 b2182b 4d4d9f c49c94 2f4b4f e377c2 8a939d"
_SERIES_DARK: Final = "4aa8e0 f0b240 2fc096 dd9abf 86cdf2 f08443 cdbd3a a58be0 58b368 ef6f7a 9a9aec dcbcb5 9fc3c7 f2a3da 96a1ad"
#: Classes of series in the order of use, of the rest, and of the shades of a heat map.
SERIES: Final = tuple(f"c{number}" for number in range(1, 15))
REST: Final = "c15"
SHADES: Final = tuple(f"h{number}" for number in range(7))
#: Class → its colour on light pages and paper, and on dark pages.
COLOURS: Final[Mapping[str, str]] = {
    name: f"#{colour}"
    for name, colour in zip(
        (*SERIES, REST, *SHADES, "track", "grid", "on", "dark"),
        f"{_SERIES_LIGHT} f0f4f8 d3e3f0 a9cbe3 76abd0 3878aa 1f6499 0b3f6b eef0f3 dfe3e8 ffffff 1d2733".split(),
        strict=True,
    )
}
DARK_COLOURS: Final[Mapping[str, str]] = {
    name: f"#{colour}"
    for name, colour in zip(
        COLOURS,
        f"{_SERIES_DARK} 212a34 24405a 28557c 2f6ea3 5795c8 8dbde2 c6e2f6 28323c 2d3741 12171d e4e9ef".split(),
        strict=True,
    )
}
#: What shapes and letters look like, whatever their colours.
SHAPES: Final = (
    "text{font:12px 'DejaVu Sans','Noto Sans',sans-serif;fill:var(--text,#1d2733)}"
    "rect,circle,polygon,text.on,text.dark{fill:currentColor}.soft{fill:var(--soft,#5b6878);font-size:11px}"
    ".name{font-size:11px}.end{text-anchor:end}.mid{text-anchor:middle}.title{font-size:15px;font-weight:bold}"
    "line{stroke:currentColor}.gap{fill:none;stroke:var(--soft,#5b6878);stroke-dasharray:2 2}"
    ".line{fill:none;stroke:currentColor;stroke-width:2}.area{opacity:.75}.error{stroke-width:1}"
    ".rule{color:var(--soft,#5b6878);stroke-dasharray:4 4}"
    ".d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:9 3 2 3}"
)
_PREFIXES: Final = (
    ("Y", 1e24),
    ("Z", 1e21),
    ("E", 1e18),
    ("P", 1e15),
    ("T", 1e12),
    ("G", 1e9),
    ("M", 1e6),
    ("k", 1e3),
)
#: Size of a label's letters, and the widths of wide, narrow and all other letters as parts of it.
_FONT, _WIDE, _NARROW, _OTHER = 11, 0.8, 0.36, 0.63


class Chart(msgspec.Struct, frozen=True):
    """A chart: its elements, its height in its own units, and what it says in words."""

    elements: str
    height: float
    label: str
    width: int = WIDTH

    def svg(self) -> str:
        """Return the chart for a page, which gives it its size and colours."""
        kind = "chart wide" if self.width > WIDTH else "chart"
        box = f"0 0 {self.width} {self.height:.0f}"
        return tag(
            "svg", self.elements, class_=kind, viewBox=box, role="img", aria_label=self.label
        )

    __html__ = svg


def standalone(chart: Chart, title: str, subtitle: str) -> str:
    """Return the chart as an SVG file of its own, with its title, on white."""
    colours = "".join(f".{name}{{color:{colour}}}" for name, colour in COLOURS.items())
    lines = textwrap.wrap(subtitle, chart.width * 10 // 64)
    below = 40 + 16 * len(lines)
    width, height = chart.width + 32, round(chart.height) + below + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -8 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{_escaped(title)}</title><desc>{_escaped(chart.label)}</desc>'
        f"<style>{SHAPES}{colours}</style>"
        + tag("rect", class_="on", x=-16, y=-8, width=width, height=height)
        + text(0, 16, title, "title")
        + "".join(text(0, 36 + 16 * number, line, "soft") for number, line in enumerate(lines))
        + f'<g transform="translate(0 {below})">{chart.elements}</g></svg>\n'
    )


def tag(name: str, *content: str, **attributes: object) -> str:
    """Return an element. ``content`` is SVG; texts of attributes are escaped, and
    numbers have one decimal.

    Example:
        >>> tag("rect", class_="c1", x=1.25, y=2)
        '<rect class="c1" x="1.2" y="2"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, words: object, kind: str = "soft") -> str:
    """Return a label; a class ``end`` or ``mid`` says that x is its end or its middle."""
    return tag("text", _escaped(words), class_=kind, x=x, y=y)


def hint(words: str) -> str:
    """Return what a browser shows where the pointer rests."""
    return tag("title", _escaped(words))


def si(value: float | None) -> str:
    """Return a number with an SI prefix: ``1.2 M``; small whole numbers as they are, a
    dash for None.

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


def short(value: float) -> str:
    """Return a number for a narrow cell: two digits and a prefix.

    Example:
        >>> short(4_640), short(15_900), short(987)
        ('4.6k', '16k', '987')
    """
    number, _, prefix = si(value).partition(" ")
    return f"{float(number):.2g}{prefix}" if prefix and float(number) < 100 else number + prefix


class Axis(msgspec.Struct, frozen=True):
    """A scale from ``low`` to ``high``. ``marks``: (value, text) instead of round numbers."""

    low: float
    high: float
    title: str = ""
    number: Callable[[float], str] = si
    is_log: bool = False
    marks: Sequence[tuple[float, str]] = ()

    def share(self, value: float) -> float:
        """Return where a value stands: 0 at ``low``, 1 at ``high``."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Return the values to mark, with their texts."""
        if self.marks:
            return list(self.marks)
        values = (
            log_ticks(self.low, self.high)
            if self.is_log
            else round_ticks(self.low, self.high, is_whole=False)
        )
        edge = 1e-9 * (self.high - self.low)
        return [
            (value, self.number(value))
            for value in values
            if self.low - edge <= value <= self.high + edge
        ]


def round_ticks(low: float, high: float, *, is_whole: bool = True) -> list[float]:
    """Return round numbers from ``low`` or below to ``high`` or above, in about four
    steps; counts have no halves.

    Example:
        >>> round_ticks(0, 870), round_ticks(0, 2)
        ([0, 200, 400, 600, 800, 1000], [0, 1, 2])
    """
    if high <= low:
        return [low, low + 1]
    rough = max((high - low) / 4, 1 if is_whole else 0)
    size = 10 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if is_whole and size == 1 else (1, 2, 2.5, 5, 10)
    step = next(size * factor for factor in factors if size * factor >= rough * 0.8)
    return [
        step * number
        for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two numbers; on short scales also 2 and 5 times of each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    return [factor * 10.0**power for power in range(first, last + 1) for factor in factors]


class Frame(msgspec.Struct, frozen=True):
    """The area of a chart between its axes."""

    x: Axis
    y: Axis
    margin: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """The y of the lower edge."""
        return self.top + self.height

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point."""
        return self.margin + self.width * self.x.share(
            x
        ), self.bottom - self.height * self.y.share(y)

    def axes(self) -> str:
        """Draw grid, marks and titles. Marks that would touch the one before are left out."""
        parts, end = [], self.margin + self.width
        for value, words in self.y.ticks():
            y = self.at(self.x.low, value)[1]
            parts.append(tag("line", class_="grid", x1=self.margin, x2=end, y1=y, y2=y))
            parts.append(text(self.margin - 6, y + 4, words, "soft end"))
        free = -math.inf
        for value, words in self.x.ticks():
            x, half = self.at(value, self.y.low)[0], text_width(words) / 2
            x = max(half, min(x, end + 7 - half))
            if x - half > free:
                parts.append(text(x, self.bottom + 17, words, "soft mid"))
                free = x + half + 6
        if self.x.title:
            parts.append(
                text(self.margin + self.width / 2, self.bottom + 34, self.x.title, "soft mid")
            )
        if self.y.title:
            parts.append(text(0, self.top - 12, self.y.title))
        return "".join(parts)


def legend(
    names: Sequence[str],
    classes: Sequence[str],
    width: float,
    y: float,
    are_filled: Sequence[bool] = (),
) -> tuple[str, float]:
    """Return a legend that fills lines of ``width`` from ``y`` on, and its height.

    Marks are boxes; those of series that ``are_filled`` says not to be are lines.
    """
    parts, x, line = [], 0.0, 0
    marks = are_filled or [True] * len(names)
    for name, kind, is_filled in zip(names, classes, marks, strict=True):
        tail = 10 if is_filled else 22
        label = fitting(name, width - tail - 6)
        size = tail + 6 + text_width(label)
        if x and x + size > width:
            x, line = 0.0, line + 1
        level = y + 18 * line
        if is_filled:
            parts.append(tag("rect", class_=kind, x=x, y=level, width=10, height=10, rx=2))
        else:
            parts.append(
                tag("line", class_=f"line {kind}", x1=x, x2=x + tail, y1=level + 5, y2=level + 5)
            )
        parts.append(text(x + tail + 5, level + 9, label))
        x += size + 14
    return "".join(parts), 18 * (line + 1) if names else 0


def text_width(words: str) -> float:
    """Return the approximate width of a label, in units of the picture."""
    wide = sum(letter.isupper() or ord(letter) > 0x2000 or letter in "mw@%" for letter in words)
    narrow = sum(letter in "ijlrtfI/|.,:;'!()[] -" for letter in words)
    return _FONT * (_WIDE * wide + _NARROW * narrow + _OTHER * (len(words) - wide - narrow))


def fitting(name: str, room: float) -> str:
    """Return a name of at most the width ``room``; a wider one loses its middle."""
    label = printable(name)
    count = len(label)
    while text_width(label) > room and count > 3:
        count = min(count - 1, int(count * room / text_width(label)) + 1)
        label = middle(printable(name), count)
    return label


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return _escaped(value)


def _escaped(value: object) -> str:
    return escape(printable(str(value)))


# Charts as PDF files: the rectangles, lines and texts of a chart's SVG, as vectors, in
# Helvetica.

_SVG: Final = "{http://www.w3.org/2000/svg}"
_INK: Final = {"title": "#1d2733", "soft": "#5b6878", "on": "#ffffff"}
_SIZES: Final = {"title": 15, "soft": 11, "name": 11}


def pdf(svg: str) -> bytes:
    """Return a chart's SVG file as a PDF of one page."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own text
    x, top, width, height = (float(number) for number in root.attrib["viewBox"].split())
    operations = [f"1 0 0 1 {-x:.1f} {height + top:.1f} cm"]
    _draw(root, 0.0, operations)
    content = "\n".join(operations).encode("cp1252", "replace")
    fonts = [
        b"<< /Type /Font /Subtype /Type1 /BaseFont /%s /Encoding /WinAnsiEncoding >>" % name
        for name in (b"Helvetica", b"Helvetica-Bold")
    ]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %.1f %.1f] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R /F2 6 0 R >> >> >>" % (width, height),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        *fonts,
    ]
    result, offsets = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(result))
        result += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        result
        + b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
        + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (len(objects) + 1, len(result))
    )


def _draw(element: ElementTree.Element, shift: float, operations: list[str]) -> None:
    """Append the drawing of the elements below one; ``shift``: what is added to y. PDF
    counts y upwards.
    """
    for child in element:
        kind = child.tag.removeprefix(_SVG)
        moved = shift
        turned = re.fullmatch(
            r"translate\(([\d.]+) ([\d.]+)\)(?: rotate\(-(\d+)\))?", child.get("transform", "")
        )
        if turned and not turned[3]:
            moved += float(turned[2])
        if kind == "rect":
            operations.append(_rectangle(child, moved))
        elif kind == "line":
            x1, x2, y = (
                float(child.attrib["x1"]),
                float(child.attrib["x2"]),
                -float(child.attrib["y1"]) - moved,
            )
            operations.append(
                f"{_colour(COLOURS['grid'])} RG {x1:.1f} {y:.1f} m {x2:.1f} {y:.1f} l S"
            )
        elif kind == "text":
            operations.append(_text(child, moved))
        elif turned and turned[3]:
            # A label that leans: its own axes are turned.
            angle = math.radians(float(turned[3]))
            cosine, sine = f"{math.cos(angle):.4f}", f"{math.sin(angle):.4f}"
            position = f"{turned[1]} {-float(turned[2]) - moved:.1f}"
            operations.append(f"q {cosine} {sine} -{sine} {cosine} {position} cm")
            _draw(child, 0.0, operations)
            operations.append("Q")
            continue
        _draw(child, moved, operations)


def _rectangle(element: ElementTree.Element, shift: float) -> str:
    kind = element.get("class", "")
    x, y, width, height = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
    box = f"{x:.1f} {-y - shift - height:.1f} {width:.1f} {height:.1f} re"
    if kind == "gap":
        return f"[2 2] 0 d {_colour(_INK['soft'])} RG {box} S [] 0 d"
    return f"{_colour(COLOURS[kind])} rg {box} f"


def _text(element: ElementTree.Element, shift: float) -> str:
    classes = element.get("class", "").split()
    size = next((_SIZES[name] for name in classes if name in _SIZES), 12)
    text = "".join(element.itertext())
    aligned = 1.0 if "end" in classes else 0.5 if "mid" in classes else 0.0
    x = float(element.attrib["x"]) - aligned * text_width(text) * size / 11
    y = -float(element.attrib["y"]) - shift
    escaped = re.sub(r"([()\\])", r"\\\1", text)
    ink = next((_INK[name] for name in ("soft", "on") if name in classes), _INK["title"])
    font = "F2" if "title" in classes else "F1"
    return f"BT {_colour(ink)} rg /{font} {size} Tf {x:.1f} {y:.1f} Td ({escaped}) Tj ET"


def _colour(colour: str) -> str:
    return " ".join(f"{int(colour[digit : digit + 2], 16) / 255:.3f}" for digit in (1, 3, 5))


# Charts as PNG files, by resvg of the extra ``cmsspark[plot]``.

#: Pixels for each unit of a chart.
_SCALE: Final = 3


def png(svg: str, next_step: str = "pip install 'cmsspark[plot]'") -> bytes:
    """Return the picture in pixels. Raises UsageError (2) where the extra is not installed."""
    try:
        import resvg_py
    except ImportError:
        problem = "resvg_py is missing"
        raise UsageError(
            "PNG files need the extra plot", found=problem, next_step=next_step
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_SCALE))
