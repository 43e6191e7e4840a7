"""Values as the pages show them: SI prefixes, exact numbers, names without control characters."""

from __future__ import annotations

from typing import Any, Final, Literal

from cmsspark.base.clock import to_second
from cmsspark.base.text.readable import readable

#: How a value is shown. ``ms`` are milliseconds of CPU or wall-clock time, ``instant``
#: UTC ms since 1970, ``change`` a difference in percent, ``dataset`` a name that may be
#: shortened in the middle, ``insert`` a word for a query.
Kind = Literal[
    "text", "dataset", "insert", "count", "bytes", "ms", "share", "change", "day", "instant", "yes"
]
NOTHING: Final = "–"
_PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
#: Characters of the end of a long name that are always shown, and of names that are
#: never shortened.
_TAIL, _SHORT = 22, 30


def si(value: float | None, unit: str = "") -> str:
    """Return a number with an SI prefix and three digits; whole numbers are exact below 1,000.

    Example:
        >>> si(1_234_567, "B"), si(9_999), si(99_960), si(999), si(None)
        ('1.23 MB', '10.0 k', '100 k', '999', '–')
    """
    if value is None:
        return NOTHING
    power = 0
    number = float(value)
    while abs(number) >= 999.5 and power < len(_PREFIXES) - 1:
        number /= 1000
        power += 1
    if power == 0:  # noqa: SIM108
        text = f"{value:,}" if isinstance(value, int) else f"{number:,.3g}"
    else:
        text = f"{number:#.3g}".removesuffix(".")
    return f"{text} {_PREFIXES[power]}{unit}".strip()


def ratio(part: float | None, total: float | None) -> float | None:
    """Return the share of a part; None where either is not known, or the total is nothing."""
    return part / total if part is not None and total else None


def shown(text: object) -> str:
    """Return a name as it is shown: control characters escaped, ``(none)`` for an empty one."""
    return readable(str(text), lines=False) if text not in (None, "") else "(none)"


def formatted(value: Any, kind: Kind) -> str:
    """Return a value as text."""
    if value is None:
        return NOTHING
    if kind == "count":
        return f"{value:,}"
    if kind == "bytes":
        return si(int(value), "B")
    if kind == "ms":
        return f"{value / 3_600_000:,.1f}"
    if kind == "share":
        # What is neither nothing nor all does not look as if it were.
        if 0 < value < 0.001:
            return "<0.1%"
        return ">99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"
    if kind == "change":
        return f"{value:+.1%}" if abs(value) < 10 else f"×{value + 1:,.0f}"
    if kind == "instant":
        return f"{to_second(int(value))} UTC"
    if kind == "yes":
        return "yes" if value else "no"
    return shown(value)


def exact(value: Any, kind: Kind) -> str:
    """Return the exact value, where the text rounds it; else nothing."""
    if kind == "bytes" and value is not None and value >= 1000:
        return f"{int(value):,} B"
    if kind == "ms" and value is not None:
        return f"{value / 1000:,.3f} s"
    return ""


def halves(name: str) -> tuple[str, str]:
    """Split a long name: its first part may be shortened on the page; its end, with
    version and tier, is kept.
    """
    return (name, "") if len(name) <= _SHORT else (name[:-_TAIL], name[-_TAIL:])
