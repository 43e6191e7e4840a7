"""The jobs and commands of popularity by site: forecasts, evaluations and models of
datasets at sites.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.popularity import features as feature_code
from cmsspark.apps.popularity import jobs
from cmsspark.apps.popularity import training as training_code
from cmsspark.apps.popularity.features import Names
from cmsspark.apps.popularity.series import Series, stored_series
from cmsspark.apps.popularity.training import Label
from cmsspark.base import errors
from cmsspark.base.periods import between
from cmsspark.base.resources import read_text
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.publish.documents import DocumentSpec, document
from cmsspark.settings.settings import load_settings
from cmsspark.store.job_index import JOBS
from cmsspark.store.stored_days import find_days
from cmsspark.submit.job_commands import load_command
from tests.apps.popularity.test_forecast_job import DAYS, FIRST, MONDAY, rows_of
from tests.run.partial_days import partial, store_partials, store_table

#: Hot at one site and cold at the other one.
SPLIT = "/Split/Run1-v1/AOD"
HERE, THERE = "T1_US_A", "T2_DE_B"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight weeks in which each dataset is read at two sites in different numbers, and
    a table of DBS.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(7)
    for number in range(DAYS):
        day = FIRST + timedelta(days=number)
        rows = [
            partial(day, dataset_name=SPLIT, site_name=site, nacc=n)
            for site, n in ((HERE, 20), (THERE, 1))
        ]
        for i in range(12):
            name = f"/P{i}/Run1-v{i}/AOD"
            rows.append(
                partial(
                    day, dataset_name=name, site_name=HERE, nacc=int(generator.poisson(i / 4)) + 1
                )
            )
            if number % 7 < i % 5:
                rows.append(
                    partial(
                        day, dataset_name=name, site_name=THERE, nacc=int(generator.poisson(3)) + 1
                    )
                )
        store_partials(tmp_path, day, rows)
    dbs: dict[str, Any] = {column.name: None for column in stored_table("dbs_events").columns}
    dbs |= {"dataset_name": SPLIT, "dataset_bytes": 7, "file_count": 3, "timestamp": 1}
    store_table(tmp_path, "dbs_events", "dbs_events", FIRST + timedelta(days=2), [dbs], dumps={})
    (tmp_path / "cmsspark.yaml").write_text(f"store: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    return tmp_path


def forecast(store: Path, day: date = MONDAY, **options: Any) -> Any:
    settings = load_settings(str(store / "cmsspark.yaml"))
    options = {"model": "average", "log": lambda text: None, **options}
    return jobs.run("popularity_site_forecast", day, str(store), settings, **options)


def ask(store: Path, *arguments: object) -> Result:
    days = ["--fout", store, "--from", FIRST, "--to", MONDAY - timedelta(days=1)]
    return CliRunner().invoke(command, ["popularity", *map(str, [*arguments, *days])])


def test_a_forecast_by_site_ranks_each_dataset_at_each_site(store: Path) -> None:
    forecast(store, top=5, weeks=2)
    rows = rows_of(store, "popularity_site_predictions")
    pairs = {(row["dataset_name"], row["site_name"]): row for row in rows}
    assert len(pairs) == len(rows) == 23 and [row["rank"] for row in rows] == list(range(1, 24))
    hot, cold = pairs[SPLIT, HERE], pairs[SPLIT, THERE]
    assert hot["probability"] > 0.5 > cold["probability"]
    assert (hot["last_week_nacc"], cold["last_week_nacc"]) == (140, 7)
    assert {row["label"] for row in rows} == {"more than 10 accesses at the site in 1 week"}
    assert rows_of(store, "popularity_site_forecast") == rows[:5]
    judged = [row for row in rows_of(store, "popularity_site_quality") if row["stratum"] == "all"]
    assert {row["dataset_count"] for row in judged} == {23}
    by_model = Counter(row["model"] for row in judged)
    assert by_model == {"average": 2, "persistence": 2, "last-week": 2, "decayed": 2}


def test_a_forecast_by_site_knows_nothing_of_its_week(store: Path) -> None:
    day = MONDAY - timedelta(days=7)
    forecast(store, day)
    before = rows_of(store, "popularity_site_predictions")
    for number in range(7):
        later = day + timedelta(days=number)
        rows = [
            partial(later, dataset_name=SPLIT, site_name=site, nacc=10**6)
            for site in (THERE, "T3_New")
        ]
        store_partials(store, later, rows, run="r2")
    forecast(store, day)
    assert rows_of(store, "popularity_site_predictions") == before


def test_documents_of_forecasts_by_site_are_valid_and_have_an_id_for_each_site(
    store: Path,
) -> None:
    forecast(store)
    for table in ("popularity_site_forecast", "popularity_site_quality"):
        made = [
            document(DocumentSpec(stored_table(table), MONDAY, "cms-spark", table), row)
            for row in rows_of(store, table)
        ]
        for one in made:
            jsonschema.validate(one, json.loads(read_text(f"schemas/documents/{table}.json")))
        assert len({one["metadata"]["_id"] for one in made}) == len(made) > 0
    with pytest.raises(errors.UsageError, match="never published"):
        document(
            DocumentSpec(stored_table("popularity_site_predictions"), MONDAY, "cms-spark", "x"), {}
        )


def test_a_column_of_the_same_week_fails_a_forecast_by_site(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast(store, weeks=1)
    of_features = feature_code.features
    whole = stored_series(
        find_days(LocalFiles(), str(store), between(FIRST, MONDAY - timedelta(days=1))),
        by_site=True,
    )
    pairs = list(zip(whole.datasets, whole.sites or (), strict=True))

    def with_leak(past: Series, names: Names) -> tuple[list[str], Any]:
        columns, rows = of_features(past, names)
        day = len(past.days)
        known = [pairs.index(pair) for pair in zip(past.datasets, past.sites or (), strict=True)]
        week = whole.accesses[day : day + 7, known].sum(0)
        return [*columns, "leak"], np.concatenate([rows, week[:, None]], axis=1)

    before = (store / "popularity_site_forecast" / MONDAY.isoformat() / "CURRENT").read_text()
    monkeypatch.setattr(training_code, "features", with_leak)
    with pytest.raises(errors.DataError, match="the feature leak knows the week"):
        forecast(store, weeks=1)
    assert (
        store / "popularity_site_forecast" / MONDAY.isoformat() / "CURRENT"
    ).read_text() == before


def test_a_model_by_site_predicts_series_by_site_only(store: Path) -> None:
    settings = load_settings(str(store / "cmsspark.yaml"))
    done = jobs.run(
        "popularity_site_train",
        MONDAY,
        str(store),
        settings,
        label=Label(20),
        model="average",
        judged=1,
        log=lambda text: None,
    )
    (row,) = rows_of(store, "popularity_site_models")
    assert (row["label"], row["dataset_count"]) == (
        "more than 20 accesses at the site in 1 week",
        23,
    )
    assert row["average_precision"] is not None and row["learned_until"] == MONDAY - timedelta(
        days=1
    )
    folder = Path(done.path, "models")
    shown = json.loads(ask(store, "predict", "--by-site", "--model", folder, "--json").stdout)
    direct = ask(store, "predict", "--by-site", "--model", "average", "--threshold", 20, "--json")
    assert shown == json.loads(direct.stdout) and {one["site"] for one in shown} == {HERE, THERE}
    by_uri = ask(store, "predict", "--by-site", "--model", folder.as_uri(), "--json")
    assert json.loads(by_uri.stdout) == shown
    nothing = ask(store, "predict", "--model", (store / "nothing").as_uri()).exception
    assert isinstance(nothing, errors.InputMissing) and "no saved model" in nothing.text()
    whole = ask(store, "predict", "--model", folder).exception
    assert (
        isinstance(whole, errors.UsageError)
        and "the model is of datasets at sites" in whole.text()
    )
    assert (
        ask(store, "train", "--model", "average", "--last", 1, "-o", store / "whole").exit_code
        == 0
    )
    other = ask(store, "predict", "--by-site", "--model", store / "whole").exception
    assert isinstance(other, errors.UsageError) and "the model is of datasets," in other.text()


def test_an_evaluation_by_site_is_that_of_the_command_and_has_a_page(store: Path) -> None:
    settings = load_settings(str(store / "cmsspark.yaml"))
    done = jobs.run(
        "popularity_site_evaluate",
        MONDAY,
        str(store),
        settings,
        label=Label(),
        models=("average",),
        last=1,
        log=lambda text: None,
    )
    page = Path(done.path, "popularity.html").read_text()
    assert "23 datasets at sites" in page and "more than 10 accesses at the site" in page
    rows = [row for row in rows_of(store, "popularity_site_evaluation") if row["stratum"] == "all"]
    stored = {row["model"]: (row["average_precision"], row["brier"]) for row in rows}
    words = ("evaluate", "--by-site", "--model", "average", "--last", 1, "--json")
    shown = {
        row["model"]: (row["average_precision"], row["brier"])
        for row in json.loads(ask(store, *words).stdout)
    }
    assert shown == stored and set(stored) == {"average", "persistence", "last-week", "decayed"}
    file = store / "page.html"
    assert (
        ask(store, "report", "--by-site", "--model", "average", "--last", 1, "-o", file).exit_code
        == 0
    )
    assert "at which sites" in file.read_text()


def test_a_model_and_its_manifest_name_the_runs_of_days_and_tables(store: Path) -> None:
    settings = load_settings(str(store / "cmsspark.yaml"))
    done = jobs.run(
        "popularity_site_train",
        MONDAY,
        str(store),
        settings,
        label=Label(),
        model="average",
        judged=1,
        log=lambda text: None,
    )
    tables = {"dbs_events": {"2026-01-07": "r1"}}
    days = {(FIRST + timedelta(days=number)).isoformat(): "r1" for number in range(DAYS)}
    assert (
        done.manifest.document["dataset_tables"] == tables
        and done.manifest.document["days"] == days
    )
    (card,) = Path(done.path, "models").glob("*/card.json")
    assert json.loads(card.read_text())["inputs"] == {"days": days, "tables": tables}


def test_each_job_by_site_has_its_command(store: Path) -> None:
    words = [
        "--date",
        str(MONDAY),
        "--fout",
        str(store),
        "--model",
        "average",
        "--judged",
        "1",
        "--json",
    ]
    for name in ("popularity_site_forecast", "popularity_site_train"):
        done = CliRunner().invoke(load_command(JOBS[name]), words)
        assert done.exit_code == 0 and json.loads(done.stdout)["job"] == name
