"""How the demo shows its results: text tables that fit in 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cmsspark.base.text import terminal
from cmsspark.base.text.terminal import percent
from cmsspark.pages.day_report import BINS

#: Maximum width of the demo's tables.
WIDTH: Final = 100


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, texts: Sequence[int] = (0,)
) -> list[str]:
    """Make a table that fits in 100 columns, or in the terminal where that is narrower."""
    width = min(WIDTH, terminal.terminal_width() or WIDTH)
    return terminal.table(headings, rows, texts=texts, width=width)


#: A manifest's bins in the order in which they are shown, with their labels.
_BINS: Final = (
    ("read", "records read"),
    *((name, f"{'=' if name == 'matched' else '+'} {label}") for name, label in BINS.items()),
)


def reconciliation(streams: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a manifest's bins, one line each: read = matched + …; a column for each
    stream, their sum and its share.
    """
    flat = {stream: {**counts, **counts["unmatched"]} for stream, counts in streams.items()}
    read = sum(counts["read"] for counts in flat.values())
    rows = []
    for name, label in _BINS:
        cells = [counts.get(name, "") for counts in flat.values()]
        total = sum(cell or 0 for cell in cells)
        # The bins of jobs stand here only where there are jobs.
        if total or any(cell == 0 for cell in cells):
            rows.append((label, *cells, total, percent(total / read if read else None)))
    return table(("", *streams, "all", "share"), rows)


def _bins(counts: Mapping[str, Any]) -> list[int]:
    flat = {**counts, **counts["unmatched"]}
    return [flat[name] for name, _ in _BINS if name in flat]


def adds_up(streams: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether in each stream every record that was read is in exactly one bin."""
    return all(_bins(counts)[0] == sum(_bins(counts)[1:]) for counts in streams.values())


def differences(
    simulated: Mapping[str, Any], counted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Return the differences of two nested mappings: ``aaa.matched: 12 expected, 11 found``."""
    lines = []
    for name in sorted({*simulated, *counted}):
        expected, actual = simulated.get(name), counted.get(name)
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            lines.extend(differences(expected, actual, f"{prefix}{name}."))
        elif expected != actual:
            lines.append(f"{prefix}{name}: {expected} expected, {actual} found")
    return lines
