"""The report of a comparison: one HTML page with the miss-ratio curves and the table behind them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from cmsspark.apps.cache.replay import Comparison
from cmsspark.base.resources import read_text
from cmsspark.base.text.terminal import volume

#: Lines that the colour-blind can tell apart (Okabe and Ito), with dashes for the second half.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 20, 620, 320
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}
.scroll {{ overflow-x: auto }}
svg {{ width: 700px; max-width: 100%; height: auto }}
svg text {{ font: 13px sans-serif; fill: currentColor }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{about}</p>
<div class="scroll">
{picture}
</div>
<div class="scroll">
{table}
</div>
<p>Byte misses: bytes of missed requests, as a share of all requested bytes; the cache is cold at the start. First
requests are missed by any cache. The bound is a lower bound of any policy's misses (PFOO-L): it knows the future and
may not be reachable. A closed gap of 50 % saves half of the bytes between LRU and the bound.</p>
</main>
</body>
</html>
"""


def page(title: str, about: str, comparisons: Sequence[Comparison], footprint: int) -> str:
    """Return the page of a comparison at several sizes. ``about`` says which requests, sizes and what was dropped."""
    return _PAGE.format(
        title=escape(title),
        about=escape(about),
        style=read_text("etc/report.css"),
        picture=_picture(comparisons, footprint),
        table=_table(comparisons, footprint),
    )


def _curves(comparisons: Sequence[Comparison]) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for each in comparisons:
        lines.setdefault(each.replay.policy, []).append((each.replay.capacity, each.replay.byte_miss_ratio))
    first = comparisons[0].replay.policy
    of_first = [each for each in comparisons if each.replay.policy == first]
    requested = comparisons[0].replay.requested_bytes
    bounds = [(each.replay.capacity, each.least_missed_bytes) for each in of_first]
    if bound := [(capacity, least / requested) for capacity, least in bounds if least is not None]:
        lines["bound"] = bound
    compulsory = comparisons[0].replay.compulsory_bytes / requested
    lines["first requests"] = [(each.replay.capacity, compulsory) for each in of_first]
    return {name: sorted(points) for name, points in lines.items()}


def _picture(comparisons: Sequence[Comparison], footprint: int) -> str:
    lines = _curves(comparisons)
    height = _TOP + _HEIGHT + 60 + 22 * ((len(lines) + 3) // 4)
    words = f"Byte misses by cache size for {', '.join(lines)}"
    parts = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 40} {height}" width="100%" role="img" aria-label="{escape(words)}">']
    for tick in range(6):
        y, x = _TOP + _HEIGHT * (1 - tick / 5), _LEFT + _WIDTH * tick / 5
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="currentColor" opacity=".15"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick * 20} %</text>')
        size = volume(footprint * tick / 5) or "0"
        parts.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">{size if tick else 0}</text>')
    caption = "size of the cache; at the right all objects fit"
    parts.append(f'<text x="{_LEFT + _WIDTH / 2}" y="{_TOP + _HEIGHT + 40}" text-anchor="middle">{caption}</text>')
    for index, (name, points) in enumerate(lines.items()):
        colour, dash = _COLOURS[index % len(_COLOURS)], "" if index < len(_COLOURS) else "2 3"
        if name in ("bound", "first requests"):
            colour, dash = "currentColor", "6 4" if name == "bound" else "1 4"
        path = " ".join(
            f"{_LEFT + _WIDTH * min(size / footprint, 1):.1f},{_TOP + _HEIGHT * (1 - ratio):.1f}"
            for size, ratio in points
        )
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{path}" {style}><title>{escape(name)}</title></polyline>')
        x, y = _LEFT + 160 * (index % 4), _TOP + _HEIGHT + 68 + 22 * (index // 4)
        parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" {style}/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _table(comparisons: Sequence[Comparison], footprint: int) -> str:
    headings = ("cache", "share of all objects", "policy", "byte misses", "request misses", "against LRU", "gap closed")
    rows = []
    for each in comparisons:
        replay = each.replay
        gap = "" if each.gap_closed is None else f"{each.gap_closed:.0%}"
        cells = (
            volume(replay.capacity) or "",
            f"{replay.capacity / footprint:.1%}",
            replay.policy,
            f"{replay.byte_miss_ratio:.1%}",
            f"{replay.miss_ratio:.1%}",
            f"{each.against_lru:+.1%}",
            gap,
        )
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
