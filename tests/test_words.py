"""Names that say nothing, and docstrings without a verb: a room may have as many as here, or fewer, never more.

``python -m bench.house --detail`` names the files. Whoever renames some lowers the number of the room.
"""

from __future__ import annotations

from collections import Counter

import pytest

from bench.house import TOP, Source, sources
from bench.house_names import vague_names, without_verb

#: Bare participles and pronouns as names of values (``bench/house_names.py`` lists them), by room.
AT_MOST = {
    "apps/ask": 22,
    "apps/dashboard": 277,
    "apps/events": 97,
    "apps/jobs_cost": 3,
    "apps/monitor": 11,
    "apps/placement": 64,
    "apps/results": 3,
    "apps/training": 55,
    "apps/usage": 25,
    "base": 5,
    "cli": 2,
    "counting": 69,
    "dumps": 81,
    "engines": 22,
    "filesystems": 7,
    "notebook": 3,
    "pages": 27,
    "publish": 18,
    "run": 14,
    "settings": 1,
    "sources": 105,
    "store": 10,
    "submit": 2,
}


def room(source: Source) -> str:
    """The folder below the package; of ``apps`` the subsystem."""
    parts = source.path.parts
    return "/".join(parts[:2]) if parts[0] == "apps" and len(parts) > 2 else source.room


@pytest.fixture(scope="module")
def files() -> list[Source]:
    return sources(TOP)


def test_no_room_gets_more_names_that_say_nothing(files: list[Source]) -> None:
    counts = Counter[str]()
    for source in files:
        counts[room(source)] += len(vague_names(source.tree))
    assert {name: count for name, count in counts.items() if count > AT_MOST.get(name, 0)} == {}


def test_a_docstring_of_a_function_begins_with_a_verb(files: list[Source]) -> None:
    assert [f"{source.path}: {name}" for source in files for name in without_verb(source.tree)] == []
