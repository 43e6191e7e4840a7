"""Names that say nothing, and docstrings without a verb: a room may have as many as
here, or fewer, never more.

``python -m bench.house --detail`` names the files. Whoever renames some lowers the
number of the room.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bench.house import TOP, Source, sources
from bench.house_names import vague_names, without_verb

#: Bare participles and pronouns as names of values (``bench/house_names.py`` lists them), by room.
AT_MOST = {
    "apps/dashboard": 0,
    "apps/events": 3,
    "apps/monitor": 2,
    "apps/placement": 2,
    "apps/results": 1,
    "apps/usage": 5,
    "base": 4,
    "cli": 2,
    "dumps": 1,
    "notebook": 2,
    "pages": 1,
    "publish": 17,
    "run": 2,
    "settings": 1,
    "sources": 4,
    "store": 2,
    "submit": 2,
}

#: A function named ``of`` or ``x_of`` instead of a verb or ``from_y``.
_X_OF = re.compile(r"^ *(?:cp)?def (?:\w+_)?of\(", re.MULTILINE)


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
    assert [
        f"{source.path}: {name}" for source in files for name in without_verb(source.tree)
    ] == []


def test_no_function_is_named_of(files: list[Source]) -> None:
    assert [str(source.path) for source in files if _X_OF.search(source.text)] == []
