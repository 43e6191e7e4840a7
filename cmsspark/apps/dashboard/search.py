"""Finding datasets by parts of their names, as one types."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.dashboard.selection import text_parameter

if TYPE_CHECKING:
    from cmsspark.apps.dashboard.page_request import PageRequest
    from cmsspark.apps.dashboard.snapshot import Snapshot

_SUGGESTIONS: Final = 15


def matching(names: list[str], text: str) -> list[int]:
    """Return the positions of names with every word of a text in any case; ``*`` and
    ``?`` match any.
    """
    words = text.lower().split()
    if not words:
        return list(range(len(names)))
    tests = [
        re.compile(translate(f"*{word}*")).match if set("*?[") & set(word) else word
        for word in words
    ]
    return [
        number
        for number, name in enumerate(names)
        if all(
            word in name.lower() if isinstance(word, str) else word(name.lower()) for word in tests
        )
    ]


def suggestions(request: PageRequest) -> list[dict[str, Any]]:
    """Datasets whose names match the parameter ``q``, those with the most accesses
    first, then those of jobs alone.
    """
    names, sums = _ranked(request.snapshot)
    numbers = matching(names, text_parameter(request.parameters, "q"))[:_SUGGESTIONS]
    return [
        {"name": names[number], "nacc": sums[number], "href": request.dataset_link(names[number])}
        for number in numbers
    ]


def _ranked(snapshot: Snapshot) -> tuple[list[str], list[int]]:
    """Return all datasets by their accesses on all stored days."""

    def make() -> tuple[list[str], list[int]]:
        tables = snapshot.datasets
        sums = tables.sums(range(len(tables.segments)), ("nacc", "job_count"), {})
        accesses, jobs = (sums[name][0] for name in ("nacc", "job_count"))
        order = sorted(range(len(tables.names)), key=lambda n: (-accesses[n], -jobs[n], n))
        return [tables.names[n] for n in order], [int(accesses[n]) for n in order]

    return snapshot.cached("ranked", make)
