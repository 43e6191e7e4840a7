"""The colours of series: a name has the same one on every page and in every period."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from cmsspark.sources.registry import STREAMS_BY_NAME

#: The last of the palette in ``static/dashboard.css`` is that of the rest.
REST: Final = 14
_OTHER: Final = "other"
#: Names that many pages show, each with its colour.
_TIERS: Final = (
    (
        "MINIAOD",
        "MINIAODSIM",
        "AODSIM",
        "NANOAODSIM",
        "GEN-SIM",
        "AOD",
        "RAW",
        "NANOAOD",
        "RECO",
        "GEN-SIM-RAW",
    ),
    ("T2", "T1", "T3", "T0"),
    ("local", "remote", "not known"),
    tuple(STREAMS_BY_NAME),
    ("outlier", "removed", "ok", "", "", "failed"),
)
_FIXED: Final[Mapping[str, int]] = {
    name: number for names in _TIERS for number, name in enumerate(names) if name
}


def colours(names: Sequence[str]) -> list[int]:
    """Return the number of each name's colour. Names of a chart differ while there are
    colours enough.

    Example:
        >>> colours(["T1", "other"])
        [1, 14]
    """
    used = {_FIXED[name] for name in names if name in _FIXED}
    result = []
    for name in names:
        if name == _OTHER:
            result.append(REST)
            continue
        number = _FIXED.get(name)
        if number is None:
            first = zlib.crc32(name.encode()) % REST if len(names) > 1 else 0
            number = next(
                (n % REST for n in range(first, first + REST) if n % REST not in used), first
            )
            used.add(number)
        result.append(number)
    return result
