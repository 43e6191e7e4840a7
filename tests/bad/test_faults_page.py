"""docs/faults.md names tests that exist, for every case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "faults.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "case", [*(f"I{number}" for number in range(1, 15)), *(f"R{number}" for number in range(1, 9))]
)
def test_every_case_of_bad_input_and_of_runs_names_its_tests(case: str) -> None:
    (row,) = re.findall(rf"^\| {case} \|.*$", PAGE, re.MULTILINE)
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", row)


def test_every_test_that_the_page_names_exists() -> None:
    for file in set(re.findall(r"`(tests/[\w/]+\.py)", PAGE)):
        assert (TOP / file).is_file(), file
    for file, name in set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)):
        assert re.search(
            rf"^def {name}\(", (TOP / file).read_text(encoding="utf-8"), re.MULTILINE
        ), name
