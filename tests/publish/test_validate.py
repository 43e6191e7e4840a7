"""The quick check accepts nothing that the JSON Schema does not, and the schemas say
what the tables say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.resources import resource
from cmsspark.publish.document_schemas import (
    compile_check,
    document_schema,
    published_tables,
    validator_for,
)
from cmsspark.publish.documents import BadDocument, document
from tests.publish.days import SPEC, row
from tools.generate import schema_files, stale_files

GOOD = document(SPEC, row(1, cpu_time=1.5, remote_nacc=1))
TABLES = published_tables()
ODD = st.sampled_from(
    [None, True, False, -1, 0, 7, 2**70, -0.5, 1.0, 2.5, float("nan"), "", "x", "x\n", [], {}, [1]]
)


def test_the_schema_files_are_as_they_are_schema_files() -> None:
    names = stale_files(Path(str(resource("schemas/documents"))), schema_files())
    assert names == [], "python -m tools.generate --write"


def test_files_that_are_missing_changed_or_generated_no_more_are_stale(tmp_path: Path) -> None:
    for name, text in schema_files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert stale_files(tmp_path, schema_files()) == []
    (tmp_path / "dbs_aaa.json").unlink()
    (tmp_path / "dbs_eos.json").write_text("{}")
    (tmp_path / "dbs_toy.json").write_text("{}")
    assert stale_files(tmp_path, schema_files()) == [
        "dbs_aaa.json",
        "dbs_eos.json",
        "dbs_toy.json",
    ]


def test_tables_of_single_people_have_no_documents() -> None:
    assert "partials" not in TABLES
    assert {"data_aggregation", "dbs_aaa", "dbs_crab", "period_aggregation", "dbs_phedex"} <= set(
        TABLES
    )


@pytest.mark.parametrize("name", [*TABLES, "completeness"])
def test_every_schema_is_a_json_schema(name: str) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(document_schema(name))


def test_the_quick_check_accepts_a_good_document() -> None:
    assert compile_check(document_schema("data_aggregation"))(GOOD)


@given(
    st.dictionaries(st.sampled_from([*GOOD, "is_gone", "unknown"]), ODD, max_size=4),
    st.dictionaries(st.sampled_from([*GOOD["metadata"], "unknown"]), ODD, max_size=2),
    st.sets(st.sampled_from(sorted(GOOD)), max_size=2),
)
def test_what_the_quick_check_accepts_the_validator_accepts(
    fields: dict[str, Any], metadata: dict[str, Any], without: set[str]
) -> None:
    changed = json.loads(json.dumps(GOOD)) | fields
    if isinstance(changed.get("metadata"), dict):
        changed["metadata"] = {**GOOD["metadata"], **metadata}
    for name in without:
        changed.pop(name, None)
    validator = validator_for("data_aggregation")
    if compile_check(validator.schema)(changed):
        assert validator.judge(changed) is None
    if validator.judge(changed) is not None:
        with pytest.raises(BadDocument):
            validator.check(changed)


@pytest.mark.parametrize(
    "schema",
    [{"type": "integer", "maximum": 3}, {"type": "object"}, {"type": "array"}, {"anyOf": []}, {}],
)
def test_a_keyword_that_the_quick_check_does_not_know_makes_it_accept_nothing(
    schema: dict[str, Any],
) -> None:
    assert not compile_check(schema)(1)
    assert not compile_check(schema)({})


def test_the_reason_names_the_field_and_not_its_value() -> None:
    with pytest.raises(BadDocument) as caught:
        validator_for("data_aggregation").check({**GOOD, "nacc": -5, "site_name": "T2_XX_SECRET"})
    assert "nacc" in str(caught.value)
    assert "-5" not in str(caught.value) and "SECRET" not in str(caught.value)
