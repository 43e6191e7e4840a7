"""How the demo shows its results: text tables that fit in 100 columns. Pure: values in, lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

WIDTH: Final = 100


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, left: Sequence[int] = (0,)) -> list[str]:
    """``rows`` under ``headings``, columns in ``left`` to the left, all others to the right; the widest text is cut
    in its middle where the table would not fit.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headings), *cells]) for i in range(len(headings))]
    over = sum(widths) + 2 * (len(widths) - 1) - (WIDTH - 2)
    if over > 0:
        widest = widths.index(max(widths))
        widths[widest] -= over
        cells = [[middle(text, widths[i]) if i == widest else text for i, text in enumerate(line)] for line in cells]
    return [
        _line(list(headings), widths, left),
        "  " + "  ".join("─" * width for width in widths),
        *(_line(line, widths, left) for line in cells),
    ]


def _line(cells: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> str:
    pairs = enumerate(zip(cells, widths, strict=True))
    return (
        "  " + "  ".join(text.ljust(width) if i in left else text.rjust(width) for i, (text, width) in pairs).rstrip()
    )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)


def middle(text: str, width: int) -> str:
    """``text`` cut in its middle to ``width`` characters: both ends of a dataset's name tell most."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def volume(count: float | None) -> str | None:
    """Bytes as people say them, in powers of 1000; None stays None."""
    if count is None:
        return None
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


#: A manifest's bins in the order in which they are shown, and what they mean to a person.
_BINS: Final = (
    ("read", "records read"),
    ("matched", "= matched a dataset"),
    ("user_file", "+ file of a user or group"),
    ("temporary", "+ temporary file"),
    ("not_in_dbs", "+ not in DBS"),
    ("no_lfn", "+ no file name"),
    ("write_only", "+ only written"),
    ("out_of_day", "+ of another day"),
    ("malformed", "+ malformed"),
)


def reconciliation(streams: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A manifest's bins, one line each: read = matched + …; a column for each stream, their sum and its share."""
    bins = {stream: _bins(found) for stream, found in streams.items()}
    total = [sum(column) for column in zip(*bins.values(), strict=True)]
    rows = [
        (label, *(counts[i] for counts in bins.values()), total[i], _share(total[i], total[0]))
        for i, (_, label) in enumerate(_BINS)
    ]
    return table(("", *streams, "all", "share"), rows)


def _bins(found: Mapping[str, Any]) -> list[int]:
    return [found[name] if name in found else found["unmatched"][name] for name, _ in _BINS]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"


def adds_up(streams: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether in each stream every record that was read is in exactly one bin."""
    return all(_bins(found)[0] == sum(_bins(found)[1:]) for found in streams.values())


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], place: str = "") -> list[str]:
    """What is in one nested mapping otherwise than in the other: ``aaa.matched: 12 wanted, 11 found``."""
    lines = []
    for name in sorted({*wanted, *found}):
        here, there = wanted.get(name), found.get(name)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            lines.extend(differences(here, there, f"{place}{name}."))
        elif here != there:
            lines.append(f"{place}{name}: {here} wanted, {there} found")
    return lines
