"""Series of files and of stored days with unusual names, fractions and later rows."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

import polars as pl
from click.testing import CliRunner

from cmsspark.apps.popularity.cli import command
from cmsspark.apps.popularity.series import read_series

FIRST = date(2025, 12, 30)
Row = tuple[date, str, float, float]


def write(file: Path, rows: list[Row]) -> Path:
    lines = [f"{day},{name},{accesses},{users}\n" for day, name, accesses, users in rows]
    file.write_text("day,dataset,accesses,users\n" + "".join(lines))
    return file


def features_of(file: Path, day: date) -> pl.DataFrame:
    output = file.with_suffix(".parquet")
    words = [
        "features",
        "--accesses",
        str(file),
        "--date",
        str(day),
        "--last",
        "2",
        "-o",
        str(output),
    ]
    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    return pl.read_parquet(output)


def test_features_of_a_file_are_those_of_the_file_without_its_later_rows(tmp_path: Path) -> None:
    rng, rows = random.Random(2), list[Row]()
    early = [
        f"/P{number % 7}/C{number % 3}-v{number}/{('AOD', 'RAW')[number % 2]}"
        for number in range(30)
    ]
    late = [f"/Late{number}/Z-v{number}/LATE" for number in range(8)]
    for number in range(56):
        for name in early + (late if number >= 42 else []):
            for _ in range(rng.choice([0, 0, 1, 2, 3])):
                rows.append(
                    (FIRST + timedelta(days=number), name, rng.random() * 30, rng.random() * 5)
                )
    rng.shuffle(rows)
    day = FIRST + timedelta(days=41)
    whole = features_of(write(tmp_path / "whole.csv", rows), day)
    of_before = [row for row in rows if row[0] < day]
    before = features_of(write(tmp_path / "before.csv", of_before), day)
    assert whole.columns == before.columns and "is_tier_AOD" in whole.columns
    known = whole.filter(pl.col("dataset").is_in(early))
    for name in set(before.columns) - {"is_popular"}:
        assert known[name].to_list() == before[name].to_list(), name


def test_names_that_differ_in_a_last_null_character_are_two_datasets(tmp_path: Path) -> None:
    rows = [
        (FIRST, "/a/b/C", 1.0, 0.0),
        (FIRST, "/a/b/C\0", 2.0, 0.0),
        (FIRST, "/é/日本-v1/X", 4.0, 0.0),
    ]
    series = read_series(write(tmp_path / "a.csv", [*rows, rows[0]]))
    assert series.datasets == ("/a/b/C", "/a/b/C\0", "/é/日本-v1/X")
    assert series.accesses.tolist() == [[2.0, 2.0, 4.0]]
