"""Values of any type in rows: without loss in tables, valid in JSON, as text in CSV."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.errors import UsageError
from cmsspark.store.query import prompt
from cmsspark.store.query.cell_values import distinct
from cmsspark.store.query.database import Database, QueryResult

LARGE = 2**127 - 1


@pytest.fixture
def database(tmp_path: Path) -> Database:
    (tmp_path / "store").mkdir()
    return Database(str(tmp_path / "store"))


def csv_cells(result: QueryResult, path: Path) -> list[str]:
    prompt.write(result, str(path))
    return path.read_text().splitlines()[1].split(",")


def test_a_whole_number_of_128_bits_keeps_its_digits(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    result = database.query(f"select {LARGE}::hugeint as n, 1e300 as e, 0.5::decimal(9, 2) as d")
    prompt.echo_result(result)
    shown = capsys.readouterr().out
    assert f"{LARGE:,}" in shown and "1e+300" in shown and "0.5" in shown
    prompt.echo(result, "json")
    assert json.loads(capsys.readouterr().out) == [{"n": LARGE, "e": 1e300, "d": 0.5}]


def test_a_share_keeps_four_digits_in_a_table(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "83 / 537 as share, 5036736.875 / 3600 as hours, 1.25::decimal(9, 2) as d, 7::double as n, 2e-5 as small"
    prompt.echo_result(database.query(f"select {columns}"))
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "0.1546",
        "1,399.1",
        "1.25",
        "7",
        "2e-05",
    ]


def test_json_has_no_number_that_json_does_not_have(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    result = database.query(
        "select 'nan'::double as a, 'inf'::double as b, [1.5, 'nan'::double] as c, {'x': null} as d"
    )
    prompt.echo(result, "json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=refuse) == [
        {"a": None, "b": None, "c": [1.5, None], "d": {"x": None}}
    ]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("interval '1' month + interval '2' day", "1 month 2 days"),
        ("interval '3' second", "0:00:03"),
        ("interval '-3' second", "-0:00:03"),
        ("interval '0' day", "0:00:00"),
        ("'\\x00\\xff'::blob", "00ff"),
        ("true", "true"),
        ("time '10:00'", "10:00:00"),
    ],
)
def test_values_of_other_types_are_text_that_people_read(
    database: Database, sql: str, text: str, tmp_path: Path
) -> None:
    assert csv_cells(database.query(f"select {sql} as v"), tmp_path / "x.csv") == [text]


def test_a_type_that_parquet_does_not_have_names_its_column_and_leaves_no_file(
    database: Database, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="column gap") as wrong:
        prompt.write(
            database.query("select 1 as a, interval '1' day as gap"), str(tmp_path / "x.parquet")
        )
    assert "CAST(gap AS VARCHAR)" in str(wrong.value)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_names_that_come_again_never_take_a_name_that_is_there() -> None:
    assert distinct(["a", "a", "a_1", "a"]) == ["a", "a_2", "a_1", "a_3"]
    assert distinct(["a", "b"]) == ["a", "b"]


def test_days_that_python_cannot_hold_are_texts_and_others_stay(
    database: Database, tmp_path: Path
) -> None:
    result = database.query(
        "select * from (values ('infinity'::date, 1), ('-infinity'::date, 2), ('99999-01-01'::date, 3), "
        "('2026-01-15'::date, 4), (null, 5)) as t(d, n) order by n"
    )
    values = [row[0] for row in result.rows]
    assert values[:2] == ["infinity", "-infinity"] and "outside of the years" in values[2]
    assert values[3:] == [date(2026, 1, 15), None]
    assert csv_cells(result, tmp_path / "x.csv")[0] == "infinity"


def test_a_result_has_at_most_so_many_bytes(database: Database) -> None:
    sql = "select repeat('a', 1000) as a from range(100)"
    assert database.query(sql, max_bytes=200_000).table.num_rows == 100
    with pytest.raises(UsageError, match="larger than"):
        database.query(sql, max_bytes=50_000)
