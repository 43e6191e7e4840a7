"""docs/publishing.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (HERE.parents[1] / "docs" / "publishing.md").read_text()))
    there = set(re.findall(r"^def (test_\w+)", "\n".join(p.read_text() for p in HERE.glob("test_*.py")), re.MULTILINE))
    assert named and named <= there, named - there
