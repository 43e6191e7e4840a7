"""The report of a comparison: one HTML page with the miss-ratio curves and the table behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from markupsafe import Markup

from cmsspark.apps.cache.replay import Comparison
from cmsspark.base.text.terminal import volume
from cmsspark.pages.charts import Line, plot
from cmsspark.pages.layout import document, section, table
from cmsspark.pages.svg import WIDE, Axis, Chart

_ABOUT: Final = """Byte misses: bytes of missed requests, as a share of all requested bytes; the cache is cold at the
start. First requests are missed by any cache."""
_ABOUT_BOUND: Final = """The bound is a lower bound of any policy's misses (PFOO-L): it knows the future and may not be
reachable. A closed gap of 50 % saves half of the bytes between LRU and the bound."""
_BOUNDS: Final = ("bound", "first requests")


def page(
    title: str, about: str, comparisons: Sequence[Comparison], footprint: int, sample: float = 1.0
) -> str:
    """Return the page of a comparison at several sizes. ``about`` says which requests,
    sizes and what was dropped.

    ``sample``: the share of the objects that was replayed, in caches of that share of
    their sizes. ``footprint``: the bytes of the sampled objects. The page has the sizes
    for all objects.
    """
    comparisons = [_scaled(entry, sample) for entry in comparisons]
    footprint = round(footprint / sample)
    text = f"{_ABOUT} {_ABOUT_BOUND}" if _has_bound(comparisons) else _ABOUT
    parts = [
        section(
            "Byte misses by the size of the cache",
            _picture(comparisons, footprint),
            about=" ".join(text.split()),
        ),
        section("By size and policy", _table(comparisons, footprint)),
    ]
    return document(title, parts, about)


def _scaled(entry: Comparison, sample: float) -> Comparison:
    return replace(
        entry, replay=replace(entry.replay, capacity=round(entry.replay.capacity / sample))
    )


def _has_bound(comparisons: Sequence[Comparison]) -> bool:
    return any(entry.least_missed_bytes is not None for entry in comparisons)


def _curves(comparisons: Sequence[Comparison]) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for entry in comparisons:
        lines.setdefault(entry.replay.policy, []).append(
            (entry.replay.capacity, entry.replay.byte_miss_ratio)
        )
    first = comparisons[0].replay.policy
    of_first = [entry for entry in comparisons if entry.replay.policy == first]
    requested = comparisons[0].replay.requested_bytes
    bounds = [(entry.replay.capacity, entry.least_missed_bytes) for entry in of_first]
    if bound := [(capacity, least / requested) for capacity, least in bounds if least is not None]:
        lines["bound"] = bound
    compulsory = comparisons[0].replay.compulsory_bytes / requested
    lines["first requests"] = [(entry.replay.capacity, compulsory) for entry in of_first]
    return {name: sorted(points) for name, points in lines.items()}


def _picture(comparisons: Sequence[Comparison], footprint: int) -> Chart:
    """Draw byte misses over the logarithm of the size; at the right all objects fit."""
    curves = _curves(comparisons)
    smallest = min(size for points in curves.values() for size, _ in points)
    title = "size of the cache, logarithmic; at the right all objects fit"
    x = Axis(smallest, max(footprint, smallest), title, volume, is_log=True)
    y = Axis(0, 1, number=lambda share: f"{share:.0%}")
    lines = [
        Line(
            name,
            [(min(size, footprint), ratio) for size, ratio in points],
            is_rule=name in _BOUNDS,
            has_dots=name not in _BOUNDS,
        )
        for name, points in curves.items()
    ]
    return plot(
        lines,
        x,
        y,
        about=f"Byte misses by cache size for {', '.join(curves)}",
        width=WIDE,
        height=300,
    )


def _table(comparisons: Sequence[Comparison], footprint: int) -> Markup:
    headings = [
        "cache",
        "share of all objects",
        "policy",
        "byte misses",
        "request misses",
        "against LRU",
    ]
    has_bound = _has_bound(comparisons)
    headings += ["gap closed"] if has_bound else []
    rows = []
    for entry in comparisons:
        replay = entry.replay
        gap = ("" if entry.gap_closed is None else f"{entry.gap_closed:.0%}",) if has_bound else ()
        sizes = (volume(replay.capacity), f"{replay.capacity / footprint:.1%}")
        misses = (
            f"{replay.byte_miss_ratio:.1%}",
            f"{replay.miss_ratio:.1%}",
            f"{entry.against_lru:+.1%}",
        )
        rows.append((*sizes, replay.policy, *misses, *gap))
    return table(headings, rows, (2,))
