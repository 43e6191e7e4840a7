"""Charts as PDF files: the rectangles, lines and texts of a chart's SVG, as vectors, in Helvetica."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Final

from cmsspark.pages.svg import COLOURS, text_width

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
    return _file(content, width, height)


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


def _file(content: bytes, width: float, height: float) -> bytes:
    """Return the file of a page with this content."""
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
