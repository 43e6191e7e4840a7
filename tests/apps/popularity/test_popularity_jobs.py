"""The jobs popularity_features and popularity_evaluate on stored days."""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cmsspark.apps.popularity import jobs
from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS
from cmsspark.apps.popularity.training import Label
from cmsspark.base import errors
from cmsspark.base.schemas import stored_table
from cmsspark.main import command
from cmsspark.settings.settings import Settings, load_settings
from tests.apps.popularity.test_forecast_job import COLD, FIRST, HOT, MONDAY, fill, rows_of
from tests.run.partial_days import partial, store_partials


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return fill(tmp_path)


def settings_of(store: Path) -> Settings:
    return load_settings(str(store / "cmsspark.yaml"))


def silent(text: str) -> None:
    """Takes the log of a run."""


def features(store: Path, day: date = MONDAY, **options: Any) -> list[dict[str, Any]]:
    label = options.pop("label", Label())
    jobs.run(
        "popularity_features",
        day,
        str(store),
        settings_of(store),
        label=label,
        log=silent,
        **options,
    )
    return rows_of(store, "popularity_features")


def test_features_have_a_row_for_each_dataset_and_week_with_labels_that_are_known(
    store: Path,
) -> None:
    rows = features(store)
    weeks = sorted({row["first_day"] for row in rows})
    assert (
        weeks == [FIRST + timedelta(days=7 * number) for number in range(1, 9)]
        and weeks[-1] == MONDAY
    )
    assert len(rows) == 8 * 23 and {row["day"] for row in rows} == {MONDAY}
    hot = {row["first_day"]: row for row in rows if row["dataset_name"] == HOT}
    assert all(row["log_accesses_7d"] == pytest.approx(np.log1p(140)) for row in hot.values())
    assert [hot[week]["is_popular"] for week in weeks] == [True] * 7 + [None]
    assert (hot[MONDAY]["data_tier"], hot[MONDAY]["campaign"]) == ("AOD", "Run1")
    assert not any(row["is_popular"] for row in rows if row["dataset_name"] == COLD)
    of_tables = {hot[MONDAY][name] for name in ("log_dbs_bytes", "log_disk_copies_t1")}
    assert of_tables == {None}, "the store has no such table"
    four = features(store, label=Label(weeks=4), last=5)
    assert sorted({row["first_day"] for row in four}) == weeks[2:]
    assert {row["first_day"] for row in four if row["is_popular"] is None} == set(weeks[4:]), (
        "a week is known when four weeks are over"
    )


def test_stored_features_are_bit_identical_when_later_days_are_deleted(store: Path) -> None:
    week = MONDAY - timedelta(days=14)
    sibling = "/Hot/Run1-v2/AOD"
    later = [week + timedelta(days=number) for number in range(14)]
    for day in later:
        shutil.rmtree(store / "data_aggregation" / day.isoformat())
        store_partials(
            store, day, [partial(day, dataset_name=name, nacc=10**6) for name in (HOT, sibling)]
        )
    whole = [row for row in features(store) if row["first_day"] == week]
    for day in later:
        shutil.rmtree(store / "data_aggregation" / day.isoformat())
    shutil.rmtree(store / "popularity_features")
    cut = {row["dataset_name"]: row for row in features(store, week) if row["first_day"] == week}
    assert {row["dataset_name"] for row in whole} == {*cut} and len(cut) == 23, (
        "the sibling has not entered"
    )
    for row in whole:
        assert [row[name] for name in BASE_COLUMNS] == [
            cut[row["dataset_name"]][name] for name in BASE_COLUMNS
        ]


def evaluation(store: Path, spark: Any = None) -> list[dict[str, Any]]:
    options: dict[str, Any] = {
        "label": Label(),
        "models": ("persistence", "average"),
        "last": 2,
        "log": silent,
    }
    jobs.run("popularity_evaluate", MONDAY, str(store), settings_of(store), spark=spark, **options)
    return rows_of(store, "popularity_evaluation")


def test_an_evaluation_has_each_week_model_and_stratum(store: Path) -> None:
    rows = evaluation(store)
    keys = {(row["first_day"], row["model"], row["stratum"]) for row in rows}
    weeks = (MONDAY - timedelta(days=14), MONDAY - timedelta(days=7))
    strata = ("all", "active", "dormant", "new")
    assert keys == {
        (week, model, part)
        for week in weeks
        for model in ("persistence", "last-week", "decayed", "average")
        for part in strata
    }
    words = [
        "popularity",
        "evaluate",
        "--fout",
        str(store),
        "--from",
        str(FIRST),
        "--to",
        str(MONDAY - timedelta(days=1)),
    ]
    words += ["--model", "persistence", "--model", "average", "--last", "2", "--json"]
    shown = json.loads(CliRunner().invoke(command, words).stdout)
    wanted = {(one["week"], one["model"]): one for one in shown}
    for row in rows:
        if row["stratum"] == "all":
            one = wanted[str(row["first_day"]), row["model"]]
            assert (row["average_precision"], row["brier"], row["auc"]) == (
                one["average_precision"],
                one["brier"],
                one["auc"],
            )


def test_an_evaluation_on_spark_is_that_of_this_process_in_one_job(
    store: Path, spark: Any
) -> None:
    here = evaluation(store)
    group = "popularity-evaluation"
    spark.sparkContext.setJobGroup(group, "evaluation")
    try:
        there = evaluation(store, spark)
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    assert len(jobs) == 1, "one task for each forecast and guard, in one stage of one job"
    for one, wanted in zip(there, here, strict=True):
        # The order of a sum in BLAS depends on its threads.
        assert all(
            one[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)
            for name, value in wanted.items()
        )


@pytest.mark.parametrize("job", ["popularity_features", "popularity_evaluate"])
def test_jobs_of_popularity_need_the_day_before_and_keep_the_last_result(
    store: Path, job: str
) -> None:
    arguments: dict[str, Any] = {"label": Label(), "log": silent}
    if job == "popularity_evaluate":
        arguments |= {"spark": None, "models": ("persistence",)}
    jobs.run(job, MONDAY, str(store), settings_of(store), **arguments)
    before = (store / job / MONDAY.isoformat() / "CURRENT").read_text()
    with pytest.raises(errors.InputMissing, match="the day before 2026-03-03 is not stored"):
        jobs.run(job, MONDAY + timedelta(days=1), str(store), settings_of(store), **arguments)
    with pytest.raises(errors.DataError, match="the series has no"):
        bad = {
            **arguments,
            "label": Label(top_bytes=3),
        }
        store_without_bytes_and_users(store)
        jobs.run(job, MONDAY, str(store), settings_of(store), **bad)
    assert (store / job / MONDAY.isoformat() / "CURRENT").read_text() == before


def store_without_bytes_and_users(store: Path) -> None:
    for number in range(56):
        day = FIRST + timedelta(days=number)
        shutil.rmtree(store / "data_aggregation" / day.isoformat())
        store_partials(
            store, day, [partial(day, dataset_name=HOT, nacc=20, user=None, read_bytes=None)]
        )


def test_columns_of_the_stored_features_are_those_of_the_models() -> None:
    features = (*BASE_COLUMNS, *STORE_COLUMNS)
    described = [
        column.name for column in stored_table("popularity_features").columns if column.about
    ]
    assert [name for name in described if name in features] == list(features)
