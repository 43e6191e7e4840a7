"""How the demo shows its results: text tables that fit in 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cmsspark.reports import terminal
from cmsspark.reports.terminal import percent

#: The widest that a table of the demo is, wherever it is printed.
WIDTH: Final = 100


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, left: Sequence[int] = (0,)) -> list[str]:
    """A table with a rule below its headings that fits in 100 columns, or in the terminal where that is narrower."""
    width = min(WIDTH, terminal.terminal_width() or WIDTH)
    return terminal.table(headings, rows, left=left, width=width, has_rule=True)


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
        (label, *(counts[i] for counts in bins.values()), total[i], percent(total[i] / total[0] if total[0] else None))
        for i, (_, label) in enumerate(_BINS)
    ]
    return table(("", *streams, "all", "share"), rows)


def _bins(found: Mapping[str, Any]) -> list[int]:
    return [found[name] if name in found else found["unmatched"][name] for name, _ in _BINS]


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
