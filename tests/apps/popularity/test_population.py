"""Populations: a dataset enters with its first row or its creation in DBS; later ones
change nothing, anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from cmsspark.apps.popularity import jobs
from cmsspark.apps.popularity.cli import command
from cmsspark.apps.popularity.evaluate import check_later_days, judge_last, predict
from cmsspark.apps.popularity.series import Series, make_series, stored_series
from cmsspark.apps.popularity.stored_run import feature_rows
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base import errors
from cmsspark.base.periods import between, start_ms
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.settings.settings import load_settings
from cmsspark.store import stored_days
from cmsspark.store.stored_columns import newest, table_rows
from tests.apps.popularity.example_series import made_series
from tests.run.partial_days import partial, store_partials, store_table

MONDAY = 32  # the number of a Monday of the series


def with_later_datasets(series: Series, count: int, day: int) -> Series:
    """The series with datasets whose first rows are on that day or later, before,
    between and after the others.
    """
    generator = np.random.default_rng(1)
    names = [f"/{'ABPZ'[i % 4]}{i}/C{i % 3}-v{i}/AOD" for i in range(count)]
    frame = pl.DataFrame(
        [
            (series.days[number], name, float(generator.poisson(30)), 0.0, 0.0, 0.0)
            for name in names
            for number in range(day, len(series.days))
        ],
        schema=["day", "dataset", "accesses", "users", "bytes", "cpus"],
        orient="row",
    )
    return make_series(pl.concat([rows_of(series), frame]))


def rows_of(series: Series) -> pl.DataFrame:
    return pl.DataFrame(
        [
            (day, name, *series.values[:, number, item].tolist())
            for number, day in enumerate(series.days)
            for item, name in enumerate(series.datasets)
            if series.first_rows is not None and number >= series.first_rows[item]
        ],
        schema=["day", "dataset", "accesses", "users", "bytes", "cpus"],
        orient="row",
    )


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("model", ["persistence", "last-week", "decayed", "logistic", "blend"])
def test_rows_of_later_days_change_no_forecast(model: str, count: int) -> None:
    series = made_series()
    alone = Weeks(series, Label(10))
    other = with_later_datasets(series, count, MONDAY)
    scores = predict(Weeks(other, Label(10)), MONDAY, model)
    own = np.isin(other.datasets, series.datasets)
    assert np.array_equal(scores[own], predict(alone, MONDAY, model))
    assert np.isnan(scores[~own]).all() and (~own).sum() == count


def test_rows_of_later_days_change_no_judgement_and_no_table() -> None:
    series = made_series(52)
    other = with_later_datasets(series, 30, MONDAY + 7)
    models = ["decayed", "logistic"]
    judged, again = (
        judge_last(Weeks(each, Label(10)), models, last=2) for each in (series, other)
    )
    assert judged[:2] == again[:2], "the first week knows none of them"
    assert again[2]["rows"] == judged[2]["rows"] == 60
    weekly = feature_rows(other, [45, 38], Label(10))
    assert weekly.group_by("first_day").len().sort("first_day")["len"].to_list() == [60, 90]


def test_a_dataset_enters_with_its_first_row_also_where_that_has_no_use() -> None:
    series = replace(made_series(), first_rows=np.arange(60))
    values = series.values.copy()
    values[:, :, 10] = 0
    weeks = Weeks(replace(series, values=values), Label(10))
    assert weeks.population(11)[:12].tolist() == [True] * 11 + [False]
    assert weeks.training(40).total == sum(range(7, 34)), "on each day those that had entered"


def test_a_population_that_knows_later_datasets_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weeks = Weeks(with_later_datasets(made_series(), 5, MONDAY + 3), Label(10))
    check_later_days(weeks, [MONDAY])
    real = Series.population
    monkeypatch.setattr(
        Series, "population", lambda series, day: np.ones(len(series.datasets), bool)
    )
    with pytest.raises(errors.DataError, match="the population of 2026-02-02 changes") as caught:
        check_later_days(weeks, [MONDAY])
    assert "5 datasets that only later days have" in caught.value.text()
    monkeypatch.setattr(
        Series, "population", lambda series, day: real(series, day) & (np.arange(65) != 30)
    )
    with pytest.raises(errors.DataError, match="changes when later days are deleted"):
        check_later_days(weeks, [MONDAY])


def test_a_file_with_later_datasets_is_predicted_as_without_them(tmp_path: Path) -> None:
    series = made_series(days=40)
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    rows_of(series).write_csv(paths[0])
    rows_of(with_later_datasets(series, 9, MONDAY)).write_csv(paths[1])
    words = ["--date", str(series.days[MONDAY]), "--json", "--model", "boosting"]
    shown = [
        CliRunner().invoke(command, ["predict", "--accesses", str(path), *words]) for path in paths
    ]
    assert shown[0].stdout == shown[1].stdout and len(json.loads(shown[0].stdout)) == 60


# -- datasets of DBS
# -------------------------------------------------------------------------------------------------

FIRST = date(2026, 1, 5)  # a Monday
OLD, READ, FRESH, LATE = "/Old/R-v1/AOD", "/Read/R-v1/AOD", "/Fresh/R-v1/AOD", "/Late/R-v1/AOD"


def store_dbs(store: Path, day: date, created: dict[str, int | None]) -> None:
    """A table of DBS with datasets that were made on those days of the series, or
    nobody knows when.
    """
    rows = [
        {
            "day": day,
            "dataset_name": name,
            "events": 1,
            "file_count": 1,
            "invalid_file_count": 0,
            "dataset_bytes": 1,
            "created_ms": None if made is None else start_ms(FIRST + timedelta(days=made)) + 5,
            "timestamp": 1,
        }
        for name, made in created.items()
    ]
    store_table(store, "dbs_events", "dbs_events", day, rows)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six weeks; datasets of DBS that nobody read, made at all times; two tables of DBS."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number in range(42):
        day = FIRST + timedelta(days=number)
        rows = [
            partial(day, dataset_name=f"/P{i}/R-v{i}/AOD", nacc=(number * i) % 7 + 1)
            for i in range(12)
        ]
        store_partials(
            tmp_path, day, [*rows, *([partial(day, dataset_name=READ)] if number >= 30 else [])]
        )
    created = {OLD: -300, READ: 20, FRESH: 25, "/Unknown/R-v1/AOD": None, "/P3/R-v3/AOD": -20}
    store_dbs(tmp_path, FIRST + timedelta(days=26), created)
    store_dbs(tmp_path, FIRST + timedelta(days=40), {**created, LATE: 39})
    (tmp_path / "cmsspark.yaml").write_text(f"store: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    return tmp_path


def series_of(store: Path, count: int = 42) -> Series:
    period = between(FIRST, FIRST + timedelta(days=count - 1))
    return stored_series(stored_days.find_days(LocalFiles(), str(store), period))


def names(series: Series, day: int) -> set[str]:
    entered = series.until(day).population(day)
    return {name for name, there in zip(series.datasets, entered, strict=True) if there} - {
        f"/P{i}/R-v{i}/AOD" for i in range(12)
    }


def test_a_dataset_enters_with_its_creation_in_dbs_once_a_table_knows_it(store: Path) -> None:
    series = series_of(store)
    assert [names(series, day) for day in (21, 28, 35, 42)] == [
        set(),
        {READ, FRESH},
        {READ, FRESH},
        {READ, FRESH, LATE},
    ]
    known = Weeks(series, Label(10)).until(35)
    assert known.population(21).sum() == 13 and known.population(20).sum() == 12, (
        "training rows of known creations"
    )
    check_later_days(Weeks(series, Label(10)), [21, 28, 35])


def test_a_creation_that_no_table_knew_is_none_whatever_later_rows_are(store: Path) -> None:
    assert names(series_of(store, 35), 35) == names(series_of(store), 35)
    assert names(series_of(store, 28), 28) == names(series_of(store), 28)


def rows_stored(store: Path, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    _, current = newest(LocalFiles(), str(store), table)
    rows: list[dict[str, Any]] = table_rows(LocalFiles(), current, table, columns).to_pylist()
    return rows


def test_the_job_and_ask_have_the_population_of_the_monday(store: Path) -> None:
    settings = load_settings(str(store / "cmsspark.yaml"))
    day = FIRST + timedelta(days=42)
    jobs.run(
        "popularity_forecast",
        day,
        str(store),
        settings,
        log=lambda text: None,
        model="average",
        weeks=2,
    )
    rows = rows_stored(store, "popularity_predictions", ["dataset_name", "stratum"])
    assert {row["dataset_name"] for row in rows if row["stratum"] == "new"} == {FRESH, LATE}
    judged = rows_stored(
        store, "popularity_quality", ["first_day", "model", "stratum", "dataset_count"]
    )
    counts = {
        (row["first_day"], row["model"]): row["dataset_count"]
        for row in judged
        if row["stratum"] == "all"
    }
    models = ("persistence", "last-week", "decayed", "average")
    assert counts == {
        (FIRST + timedelta(days=number), model): 14 for number in (28, 35) for model in models
    }
