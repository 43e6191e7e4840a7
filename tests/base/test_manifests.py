"""Manifests: keys that old versions lack, or that this one does not know, are no error;
values of another type are.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from cmsspark.base.manifests import Manifest


def test_an_empty_manifest_has_nothing_of_all() -> None:
    manifest = Manifest.from_dict({})
    assert (manifest.tables, manifest.inputs, manifest.days, manifest.partial) == (
        {},
        (),
        {},
        False,
    )
    assert (manifest.run, manifest.quarantine, manifest.seconds) == ("", None, None)


@pytest.mark.parametrize(
    "name", [name for name in Manifest.__struct_fields__ if name != "document"]
)
def test_null_is_not_set(name: str) -> None:
    assert getattr(Manifest.from_dict({name: None}), name) == getattr(Manifest.from_dict({}), name)


def test_the_document_keeps_what_is_unknown() -> None:
    document = {
        "run": "r",
        "colour": {"a": 1},
        "file \udcff": 2,
        "tables": {"t": {"rows": 1, "colour": 3}},
    }
    manifest = Manifest.from_dict(document)
    assert manifest.document == document
    assert manifest.tables["t"].rows == 1
    assert (manifest.tables["t"].format, manifest.tables["t"].bytes) == ("parquet", None)


def test_inputs_are_those_of_a_stream() -> None:
    files = [["/a/\udcff", 5, 1], ["/b", 7, 2], ["/c", None, None]]
    inputs = [{"table": "FILES", "files": files[:1]}, {"stream": "aaa", "files": files}]
    manifest = Manifest.from_dict({"inputs": inputs})
    aaa = manifest.find_input("aaa")
    assert aaa is not None
    assert (aaa.size, [list(file) for file in aaa.files]) == (12, files)
    assert manifest.find_input("eos") is None


def test_days_of_a_period_are_dates() -> None:
    assert Manifest.from_dict({"days": {"2026-01-15": "r", "2026-01-16": None}}).days == {
        date(2026, 1, 15): "r",
        date(2026, 1, 16): None,
    }


@pytest.mark.parametrize(
    "document",
    [
        {"tables": []},
        {"tables": {"t": {"rows": "3"}}},
        {"inputs": [{"files": [["/a", 1]]}]},
        {"dumps": {"dbs": {}}},
        {"partial": "yes"},
        {"days": {"yesterday": "r"}},
        {"missing_streams": "aaa"},
    ],
    ids=str,
)
def test_a_value_of_another_type_is_an_error_that_says_where(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at `"):
        Manifest.from_dict(document)
