"""Commands of popularity on a file of accesses."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from cmsspark.apps.popularity.cli import command
from cmsspark.apps.popularity.series import read_series
from cmsspark.base import errors
from tests.apps.popularity.example_series import made_series, write


def ask(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_commands_on_a_file(tmp_path: Path) -> None:
    file = write(made_series(), tmp_path / "a.csv")
    assert read_series(file).datasets == made_series().datasets
    rows = json.loads(ask("predict", "--accesses", file, "--model", "logistic", "--json").stdout)
    assert [row["rank"] for row in rows] == list(range(1, 61)) and rows[0]["probability"] >= rows[
        -1
    ]["probability"]
    table = ask("evaluate", "--accesses", file, "--model", "persistence", "--last", "1").stdout
    assert all(text in table for text in ("mean", "average precision", "calibration error"))
    assert ask("features", "--accesses", file, "-o", tmp_path / "f.parquet").exit_code == 0


def test_wrong_words_end_in_2(tmp_path: Path) -> None:
    file = write(made_series(days=20, datasets=3), tmp_path / "a.csv")
    for arguments in (
        ("predict", "--accesses", file, "--model", "oracle"),
        ("predict",),
        ("predict", "--accesses", file, "--date", "2025-01-01"),
    ):
        assert isinstance(ask(*arguments).exception, errors.UsageError), arguments
