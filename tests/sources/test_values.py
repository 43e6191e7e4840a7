"""Rules 9 and 10 are coded once in Python and once for compiled code, side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.sources import values

SOURCES = Path(values.__file__).parent
#: What only code of these rules has: prefixes of logged names, the bound of a number, a
#: regular expression of seconds.
MARKS = (
    '"root://"',
    '"file:"',
    "2**63 - 1",
    "2.0**63",
    "9223372036854775808",
    "_SECONDS",
    "_decimal_seconds",
)


@pytest.mark.parametrize("mark", MARKS)
def test_the_rules_stand_in_one_place_of_each_kind(mark: str) -> None:
    files = {
        file.name for file in SOURCES.iterdir() if file.suffix in (".py", ".pyx", ".pxd", ".pxi")
    }
    assert {name for name in files if mark in (SOURCES / name).read_text()} <= {
        "values.py",
        "values.pxd",
    }


@pytest.mark.parametrize("name", ["values.py", "values.pxd"])
def test_each_names_its_rules_and_the_other(name: str) -> None:
    text = (SOURCES / name).read_text()
    other = {"values.py": "values.pxd", "values.pxd": "values.py"}[name]
    assert all(word in text for word in ("(rule 9", "(rule 10", other))


def test_the_names_of_a_batch_are_normalised_as_each_alone() -> None:
    names = [
        "/store/a",
        "/store//a",
        "file:/store/a",
        "root://host:1094//eos/cms/store/a",
        "/eos/cms/store/a",
        "",
        None,
    ]
    assert values.normalised_lfns(names) == [values.normalise_lfn(name or "") for name in names]
