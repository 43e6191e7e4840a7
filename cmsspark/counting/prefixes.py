"""Where files lie that are not in DBS, for people: beginnings of their names that name nobody.

A directory may be called after a person, so only words that are known to name an area
of CMS are shown; below areas of production also an era, which begins with a capital and
holds a digit, as logins do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

#: Prefixes that a task keeps of a stream; what comes after these is counted as :data:`OTHER`.
KEPT: Final = 200
OTHER: Final = "other"

_PRODUCED: Final = frozenset(
    (
        "data",
        "mc",
        "hidata",
        "himc",
        "express",
        "hiexpress",
        "relval",
        "generator",
        "lhe",
        "backfill",
        "unmerged",
    )
)
_AREAS: Final = _PRODUCED | frozenset(
    (
        "user",
        "group",
        "temp",
        "results",
        "caf",
        "test",
        "logs",
        "local",
        "phedex_monitoring",
        "accounting",
    )
)
_HEAD: Final = re.compile(r"(?:[^/]*/){0,4}")
_ERA: Final = re.compile(r"(?=[^0-9]*[0-9])[A-Z][A-Za-z0-9_-]{2,79}", re.ASCII)


def heads(lfns: Iterable[str]) -> Counter[str]:
    """Return how many of ``lfns`` begin with which directories: up to three, with the
    slash after each.
    """
    match = _HEAD.match
    return Counter(match(lfn)[0] for lfn in lfns)  # type: ignore[index]  # it matches any text


def all_shown(lfns: Iterable[str]) -> list[str]:
    """Return of each of ``lfns`` the beginning that people may see. Names with one
    beginning have one bin.
    """
    match = _HEAD.match
    return [shown(match(lfn)[0]) for lfn in lfns]  # type: ignore[index]  # it matches any text


@lru_cache(maxsize=10_000)
def shown(head: str) -> str:
    """``head`` as people may see it: ``/store/user/*``, ``/store/mc/Run2018A/*``,
    ``/store/*``; ``*`` for any other.

    What it returns is shown as it is.
    """
    directories = head.split("/")[:-1]
    if directories[:2] != ["", "store"]:
        return "*"
    area = directories[2] if len(directories) > 2 else ""
    if area not in _AREAS:
        return "/store/*"
    era = directories[3] if len(directories) > 3 else ""
    if area in _PRODUCED and _ERA.fullmatch(era):
        return f"/store/{area}/{era}/*"
    return f"/store/{area}/*"


def add(to: Counter[str], counts: Mapping[str, int]) -> None:
    """Count ``counts`` (by head) in ``to`` (by what is shown), which stays small."""
    for head, count in counts.items():
        name = shown(head)
        to[name if name in to or len(to) < KEPT else OTHER] += count
