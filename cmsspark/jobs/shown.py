"""Tables for people: columns that line up, whole names that can be copied, numbers and volumes as they are read."""

from __future__ import annotations

from collections.abc import Sequence

from cmsspark.readable import readable

_UNITS = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, left: Sequence[int] = (0,)) -> list[str]:
    """``rows`` under ``headings``, a line each; columns in ``left`` begin at the left, all others end at the right."""
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    return [
        "  " + "  ".join(
            text.ljust(width) if place in left else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]  # fmt: skip


def volume(count: float | None) -> str | None:
    """Bytes as people say them, in powers of 1000; None stays None."""
    if count is None:
        return None
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def printable(text: str) -> str:
    """A name as it is, but for what would write elsewhere on a terminal."""
    return readable(text, lines=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))
