"""docs/faults.md has a row for every fault of publishing and of secrets, and names
tests that exist.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "faults.md"


def test_every_test_that_the_page_names_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sources = {
        path.relative_to(HERE.parent).as_posix(): path.read_text() for path in HERE.rglob("*.py")
    }
    there = set(re.findall(r"^def (test_\w+)", "\n".join(sources.values()), re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named and named <= there, named - there
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert files <= sources.keys(), files - sources.keys()


def test_every_fault_of_publishing_and_of_secrets_has_a_row_with_a_test() -> None:
    rows = dict(
        re.findall(r"^\| ([PS][0-9]+) \|(.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(rows) == {f"P{number}" for number in range(1, 29)} | {
        f"S{number}" for number in range(1, 8)
    }
    assert [name for name, row in rows.items() if "`test_" not in row and name != "S4"] == []
