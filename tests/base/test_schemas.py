"""Schemas: every file in ``schemas/`` is well-formed, and says what each column holds."""

from __future__ import annotations

import pytest

from cmsspark.base import schemas
from cmsspark.base.errors import SettingsError
from cmsspark.base.resources import resource
from cmsspark.store.own_jobs import JOBS

TYPES = {"string", "long", "int", "double", "date", "boolean"}
FILES = sorted(path.name.removesuffix(".yaml") for path in resource("schemas/tables").iterdir())
TABLES = sorted(
    {*FILES, *(table for job in JOBS.values() for table in job.tables)} - {"dbs_STREAM"}
)
INPUTS = sorted(
    f"{folder.name}/{path.name.removesuffix('.yaml')}"
    for folder in resource("schemas/inputs").iterdir()
    for path in folder.iterdir()
)


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
    assert {column.type for column in table.columns} <= TYPES | {"any", "signed", "flag"}


def test_every_table_of_a_job_has_a_schema() -> None:
    for job in JOBS.values():
        assert [schemas.stored_table(table).name for table in job.tables] == list(job.tables)


def test_every_table_that_a_job_publishes_has_keys() -> None:
    assert [table for table in TABLES if not schemas.stored_table(table).keys] == []
    assert schemas.stored_table("phedex").keys == ("dataset_name", "site_name", "kind")
    private = [table for table in TABLES if schemas.stored_table(table).is_private]
    assert set(private) == {
        "condor_ids",
        "crab_partials",
        "crab_tasks",
        "job_cost_ids",
        "partials",
        "popularity_features",
        "popularity_predictions",
        "report_ids",
        "rules_stuck",
        "tape_recalls",
    }


def test_the_report_of_a_stream_is_the_aggregation_by_another_name() -> None:
    report, of_all = schemas.stored_table("dbs_crab"), schemas.stored_table("data_aggregation")
    assert report.columns == of_all.columns
    assert report.about == "As data_aggregation, for the crab stream alone."
    with pytest.raises(FileNotFoundError):
        schemas.stored_table("nothing")


PARENT = """
table: parent
about: A table.
keys: [a]
columns:
  - {name: a, type: string, nullable: false, about: first}
  - {name: b, type: long, about: second}
"""


def table(child: str) -> schemas.Table:
    files = {"t/parent.yaml": PARENT, "t/child.yaml": child}

    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return schemas.described_table("t/child.yaml", read)


def test_a_table_that_extends_another_has_its_columns_and_keys() -> None:
    found = table("table: child\nabout: Another.\nextends: parent\n")
    assert (found.name, found.about, found.names, found.keys) == (
        "child",
        "Another.",
        ["a", "b"],
        ("a",),
    )


def test_a_table_that_extends_another_takes_over_changes_and_adds_columns_in_its_own_order() -> (
    None
):
    columns = "  - {name: c, type: date, about: third}\n  - {name: b, about: changed}\n  - a\n"
    found = table(f"table: child\nabout: x\nextends: parent\nkeys: [c, a]\ncolumns:\n{columns}")
    assert found.keys == ("c", "a")
    assert found.columns == (
        schemas.Column("c", "date", about="third"),
        schemas.Column("b", "long", about="changed"),
        schemas.Column("a", "string", nullable=False, about="first"),
    )


@pytest.mark.parametrize(
    ("child", "wanted", "line"),
    [
        ("extends: nobody\n", "no table nobody to extend", 3),
        ("extends: child\n", "child extends this table itself", 3),
        ("extends: parent\ncolumns:\n  - a\n  - z\n", "no column 'z' to inherit", 6),
        ("extends: parent\ncolumns:\n  - a\n  - {name: z}\n", "column 'z' needs a type", 6),
        (
            "extends: parent\ncolumns:\n  - {name: a, typ: long}\n",
            "there is no setting 'typ' under columns",
            5,
        ),
        ("extends: parent\ncolumns: [a, a]\n", "column 'a' is defined twice", 4),
        ("extends: parent\ncolumns: [b]\n", "key column 'a' does not exist", 0),
        ("extends: parent\nkeys: [z]\n", "key column 'z' does not exist", 4),
        ("extend: parent\n", "there is no setting 'extend'", 3),
        ("private: true\n", "a table needs columns", 0),
    ],
)
def test_a_wrong_description_is_reported_with_file_and_line(
    child: str, wanted: str, line: int
) -> None:
    with pytest.raises(SettingsError, match=wanted) as told:
        table(f"table: child\nabout: x\n{child}")
    assert told.value.where == ("t/child.yaml" + (f", line {line}" if line else ""))


def test_tables_that_extend_each_other_are_reported() -> None:
    files = {
        f"t/{name}.yaml": f"table: {name}\nabout: x\nextends: {to}\n"
        for name, to in ("ab", "bc", "ca")
    }
    with pytest.raises(SettingsError, match="a extends this table itself") as told:
        schemas.described_table("t/a.yaml", files.__getitem__)
    assert told.value.where == "t/c.yaml, line 3"


def test_the_spark_form_has_the_same_columns_all_nullable() -> None:
    for name in TABLES:
        fields = schemas.stored_table(name).spark().fields
        assert [field.name for field in fields] == schemas.stored_table(name).names
        assert all(field.nullable for field in fields)


def test_the_report_and_the_partials_share_their_keys() -> None:
    report, partials = (
        schemas.stored_table("data_aggregation").names,
        schemas.stored_table("partials").names,
    )
    assert report[:5] == partials[:5] == ["day", "stream", "dataset_name", "site_name", "app"]
