"""Schemas: every file in ``schemas/`` is well-formed, and says what each column holds."""

from __future__ import annotations

import pytest

from cmsspark import schemas
from cmsspark.jobs import JOBS
from cmsspark.resources import resource

TYPES = {"string", "long", "int", "double", "date", "boolean"}
TABLES = sorted(path.name.removesuffix(".yaml") for path in resource("schemas/tables").iterdir())
INPUTS = sorted(
    f"{folder.name}/{path.name.removesuffix('.yaml')}"
    for folder in resource("schemas/inputs").iterdir()
    for path in folder.iterdir()
)
DOCUMENTS = sorted(path.name.removesuffix(".json") for path in resource("schemas/documents").iterdir())


@pytest.mark.parametrize("name", TABLES)
def test_a_stored_table_has_typed_columns_with_words(name: str) -> None:
    table = schemas.stored_table(name)
    assert table.name == name
    assert table.about
    assert len(set(table.names)) == len(table.names) > 0
    for column in table.columns:
        assert column.type in TYPES
        assert column.about, f"{name}.{column.name}"


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_has_columns_of_their_own_names(name: str) -> None:
    table = schemas.input_table(name)
    assert table.about
    assert len(set(table.names)) == len(table.names) > 0
    assert {column.type for column in table.columns} <= TYPES | {"any"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_has_a_schema(name: str) -> None:
    assert schemas.document_schema(name)["type"] == "object"


def test_every_table_of_a_job_has_a_schema() -> None:
    assert {table for job in JOBS.values() for table in job.tables} <= set(TABLES)


def test_the_spark_form_has_the_same_columns_all_nullable() -> None:
    for name in TABLES:
        fields = schemas.stored_table(name).spark().fields
        assert [field.name for field in fields] == schemas.stored_table(name).names
        assert all(field.nullable for field in fields)


def test_the_report_and_the_partials_share_their_keys() -> None:
    report, partials = schemas.stored_table("data_aggregation").names, schemas.stored_table("partials").names
    assert report[:5] == partials[:5] == ["day", "stream", "dataset_name", "site_name", "app"]
