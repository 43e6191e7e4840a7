"""The quick check accepts nothing that the JSON Schema does not, and the schemas say what the tables say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.publish.documents import PRIVATE, BadDocument, document
from cmsspark.publish.validate import compile_check, schema_of, validator_for
from cmsspark.resources import resource
from cmsspark.schemas import document_schema, stored_table
from tests.publish.days import SPEC, row

GOOD = document(SPEC, row(1, cpu_time=1.5, remote_nacc=1))
TABLES = sorted(
    entry.name.removesuffix(".yaml")
    for entry in resource("schemas/tables").iterdir()
    if entry.name.removesuffix(".yaml") not in PRIVATE
)
ODD = st.sampled_from([None, True, False, -1, 0, 7, 2**70, -0.5, 1.0, 2.5, float("nan"), "", "x", "x\n", [], {}, [1]])


@pytest.mark.parametrize("table", TABLES)
def test_the_schema_file_says_what_the_table_says(table: str) -> None:
    assert rules(document_schema(table)) == rules(schema_of(stored_table(table)))


def rules(schema: Any) -> Any:
    """A schema without its descriptions."""
    if isinstance(schema, dict):
        return {key: rules(value) for key, value in schema.items() if key != "description"}
    return schema


@pytest.mark.parametrize("name", [*TABLES, "completeness"])
def test_every_schema_file_is_a_json_schema(name: str) -> None:
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
    "schema", [{"type": "integer", "maximum": 3}, {"type": "object"}, {"type": "array"}, {"anyOf": []}, {}]
)
def test_a_keyword_that_the_quick_check_does_not_know_makes_it_accept_nothing(schema: dict[str, Any]) -> None:
    assert not compile_check(schema)(1)
    assert not compile_check(schema)({})


def test_the_reason_names_the_field_and_not_its_value() -> None:
    with pytest.raises(BadDocument) as caught:
        validator_for("data_aggregation").check({**GOOD, "nacc": -5, "site_name": "T2_XX_SECRET"})
    assert "nacc" in str(caught.value)
    assert "-5" not in str(caught.value) and "SECRET" not in str(caught.value)
