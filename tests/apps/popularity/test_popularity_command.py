"""Commands of popularity on a file of accesses, and the saved models that they make and take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.popularity import saved
from cmsspark.apps.popularity.baselines import with_baselines
from cmsspark.apps.popularity.cli import command
from cmsspark.apps.popularity.series import Series, read_series
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base import errors
from cmsspark.store import stored_columns
from tests.apps.popularity.example_series import made_series, write
from tests.store.query.far_files import FAR, FarFiles


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
    assert "mean" in table and "average precision" in table
    assert ask("features", "--accesses", file, "-o", tmp_path / "f.parquet").exit_code == 0
    page = tmp_path / "r.html"
    assert (
        ask(
            "report", "--accesses", file, "--model", "logistic", "--last", "1", "-o", page
        ).exit_code
        == 0
    )
    assert page.read_text().count("<svg") == 2 and "<script" not in page.read_text()


def test_wrong_words_end_in_2(tmp_path: Path) -> None:
    file = write(made_series(days=20, datasets=3), tmp_path / "a.csv")
    for arguments in (
        ("predict", "--accesses", file, "--model", "oracle"),
        ("predict",),
        ("predict", "--accesses", file, "--date", "2025-01-01"),
    ):
        assert isinstance(ask(*arguments).exception, errors.UsageError), arguments


def test_a_saved_model_predicts_the_same_bits_and_says_what_it_is(tmp_path: Path) -> None:
    file, folder = write(made_series(), tmp_path / "a.csv"), tmp_path / "models"
    for name in ("blend", "logistic", "persistence"):
        place = Path(
            ask(
                "train", "--accesses", file, "--model", name, "--last", "1", "-o", folder
            ).stdout.strip()
        )
        direct = ask("predict", "--accesses", file, "--model", name, "--json").stdout
        assert ask("predict", "--accesses", file, "--model", folder, "--json").stdout == direct, (
            name
        )
        card = json.loads((place / "card.json").read_text())
        assert (
            card["model"] == name
            and card["learned_until"] == "2026-02-14"
            and card["label"]["threshold"] == 10
        )
        assert [row["model"] for row in card["weeks"]] == list(
            with_baselines([name]) if name != "persistence" else ["persistence"]
        )
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 3
    again = ask(
        "train", "--accesses", file, "--model", "logistic", "--last", "1", "-o", folder
    ).stdout.strip()
    assert Path(again).name in {path.name for path in folder.iterdir()}, (
        "the same data and seed: the same version"
    )


def test_a_saved_model_is_not_asked_about_days_that_it_knows(tmp_path: Path) -> None:
    file, folder = write(made_series(), tmp_path / "a.csv"), tmp_path / "models"
    assert (
        ask(
            "train", "--accesses", file, "--model", "average", "--last", "1", "-o", folder
        ).exit_code
        == 0
    )
    error = ask("predict", "--accesses", file, "--model", folder, "--date", "2026-02-10").exception
    assert isinstance(error, errors.DataError) and "knows days" in error.text()


def test_a_saved_model_takes_series_with_other_tiers_and_refuses_what_is_damaged(
    tmp_path: Path,
) -> None:
    file, folder = write(made_series(), tmp_path / "a.csv"), tmp_path / "models"
    place = Path(
        ask(
            "train", "--accesses", file, "--model", "average", "--last", "1", "-o", folder
        ).stdout.strip()
    )
    other = made_series(days=60)
    names = tuple(sorted(f"/Q/{name.split('/')[2]}/NANO" for name in other.datasets))
    renamed = write(Series(other.days, names, other.values), tmp_path / "b.csv")
    assert ask("predict", "--accesses", renamed, "--model", folder, "--json").exit_code == 0
    card = json.loads((place / "card.json").read_text())
    (place / "card.json").write_text(json.dumps({**card, "columns": card["columns"][1:]}))
    damaged = ask("predict", "--accesses", file, "--model", folder).exception
    assert isinstance(damaged, errors.DataError) and "digest" in damaged.text()
    (place / "model.json").write_text("{}")
    assert isinstance(
        ask("predict", "--accesses", file, "--model", place).exception, errors.DataError
    )
    (tmp_path / "empty").mkdir()
    assert isinstance(
        ask("predict", "--accesses", file, "--model", tmp_path / "empty").exception,
        errors.InputMissing,
    )


def test_a_saved_model_is_that_of_a_version_or_the_newest_of_a_folder(tmp_path: Path) -> None:
    weeks = Weeks(made_series(), Label(10))
    version = saved.train(tmp_path / "models", weeks, "average", [], 0)
    for place in (tmp_path / "models", version):
        assert saved.load(f"{place}/").version == version.name
    with pytest.raises(errors.InputMissing, match="no saved model"):
        saved.load(str(tmp_path))


def test_errors_of_a_model_of_another_file_system_name_its_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weeks = Weeks(made_series(), Label(10))
    version = saved.train(tmp_path / "models", weeks, "average", [], 0)
    monkeypatch.setattr(stored_columns, "open_store", lambda *_: FarFiles(str(tmp_path)))
    found = saved.find(f"{FAR}/models")
    assert found is not None and found.version == version.name
    with pytest.raises(errors.DataError, match="knows days") as caught:
        found.predict(weeks, 10)
    assert caught.value.where == f"{FAR}/models/{version.name}"
    (version / "model.json").write_text("{}")
    with pytest.raises(errors.DataError, match="cannot be read") as caught:
        saved.find(f"{FAR}/models")
    assert caught.value.where == f"{FAR}/models/{version.name}"
