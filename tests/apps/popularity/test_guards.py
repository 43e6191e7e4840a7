"""The guard against columns of the predicted week: what it finds, and that honest columns pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from cmsspark.apps.popularity import features as feature_code
from cmsspark.apps.popularity import training as training_code
from cmsspark.apps.popularity.evaluate import check_columns
from cmsspark.apps.popularity.features import Names
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base import errors
from tests.apps.popularity.example_series import made_series

REAL = feature_code.features


def measured_series(seed: int, datasets: int = 150) -> Series:
    """A series with users, bytes and CPU that follow the accesses, as logs have them."""
    series = made_series(days=60, datasets=datasets, seed=seed)
    generator = np.random.default_rng(seed)
    values = series.values.copy()
    values[1] = generator.binomial(values[0].astype(int), 0.4)
    values[2] = values[0] * generator.lognormal(20, 1, values[0].shape)
    values[3] = values[0] * generator.lognormal(6, 1, values[0].shape)
    return replace(series, values=values)


def of_the_week(series: Series, kind: str, day: int, seed: int) -> Any:
    """What nobody knows on that day: a measure of its week, whole or in part, or a
    noisy copy of the accesses.
    """
    week = series.values[:, day : day + 7]
    generator = np.random.default_rng([seed, day])
    noise = generator.normal(0, 1, len(series.datasets))
    return {
        "cpu": lambda: week[3].sum(0),
        "users": lambda: week[1].sum(0),
        "bytes": lambda: week[2].sum(0),
        "logarithm": lambda: -np.log1p(week[0].sum(0)),
        "half a factor of noise": lambda: week[0].sum(0) * np.exp(noise / 2),
        "a factor of noise": lambda: week[0].sum(0) * np.exp(noise),
        "three of its days": lambda: week[0, :3].sum(0),
    }[kind]()


def check_with(monkeypatch: pytest.MonkeyPatch, series: Series, column: Any) -> None:
    def with_column(past: Series, names: Names) -> tuple[list[str], Any]:
        columns, rows = REAL(past, names)
        return [*columns, "suspect"], np.append(rows, column(len(past.days))[:, None], axis=1)

    monkeypatch.setattr(training_code, "features", with_column)
    check_columns(Weeks(series, Label(10)), series.mondays()[-4:])


KINDS = [
    "cpu",
    "users",
    "bytes",
    "logarithm",
    "half a factor of noise",
    "a factor of noise",
    "three of its days",
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_the_predicted_week_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    series = measured_series(seed)
    with pytest.raises(errors.DataError, match="the feature suspect knows the week") as caught:
        check_with(monkeypatch, series, lambda day: of_the_week(series, kind, day, seed))
    assert "leave the column out" in caught.value.text()


@pytest.mark.parametrize("seed", range(6))
def test_columns_of_the_past_pass(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    series = measured_series(seed, datasets=(25, 60, 400)[seed % 3])
    for back in (7, 8, 14):
        check_with(
            monkeypatch,
            series,
            lambda day, back=back: of_the_week(series, "cpu", max(day - back, 0), seed),
        )


def test_a_series_in_which_every_dataset_is_new_passes() -> None:
    series = measured_series(1)
    quiet = series.values.copy()
    quiet[:, :39] = 0
    weeks = Weeks(replace(series, values=quiet), Label(10))
    assert series.days[39] == series.days[0] + timedelta(days=39)
    check_columns(weeks, [39])


def last_days(series: Series, count: int) -> Series:
    return replace(series, days=series.days[-count:], values=series.values[:, -count:])


@pytest.mark.parametrize(("datasets", "days"), [(20, 15), (23, 22), (45, 60)])
def test_the_accesses_of_the_week_fail_one_week_of_few_rows(
    monkeypatch: pytest.MonkeyPatch, datasets: int, days: int
) -> None:
    series = last_days(measured_series(3, datasets), days)

    def with_week(past: Series, names: Names) -> tuple[list[str], Any]:
        columns, rows = REAL(past, names)
        week = series.accesses[len(past.days) : len(past.days) + 7].sum(0)
        return [*columns, "suspect"], np.append(rows, week[:, None], axis=1)

    check_columns(Weeks(series, Label(10)), [days - 7])
    monkeypatch.setattr(training_code, "features", with_week)
    with pytest.raises(errors.DataError, match="the feature suspect knows the week"):
        check_columns(Weeks(series, Label(10)), [days - 7])


@pytest.mark.parametrize("datasets", [20, 45, 80])
def test_few_datasets_of_which_most_never_change_pass(datasets: int) -> None:
    series = last_days(measured_series(3, datasets), 36)
    values = np.ones_like(series.values)
    values[:, :, :5] = np.random.default_rng(5).poisson(20, values[:, :, :5].shape)
    check_columns(Weeks(replace(series, values=values), Label(10)), [29])
