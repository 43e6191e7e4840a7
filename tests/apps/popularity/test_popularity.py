"""Predictions of popularity: labels, features, guards that fail, metrics by hand."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cmsspark.apps.popularity import features as feature_code
from cmsspark.apps.popularity import training as training_code
from cmsspark.apps.popularity.evaluate import (
    calibrated,
    calibration,
    check_later_days,
    evaluated_days,
    fit,
    judge_last,
    predict,
    strata,
)
from cmsspark.apps.popularity.features import Names, features
from cmsspark.apps.popularity.forecast import predictions
from cmsspark.apps.popularity.models import ABOUT, MODELS
from cmsspark.apps.popularity.scores import (
    area_under_curve,
    average_precision,
    calibration_error,
    metrics,
)
from cmsspark.apps.popularity.series import MEASURES, Series
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base import errors
from tests.apps.popularity.example_series import FIRST, made_series


def test_average_precision_and_area_by_hand() -> None:
    labels = np.array([1.0, 0, 1, 0])
    assert average_precision(labels, np.array([4.0, 3, 2, 1])) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.arange(28) > 21, np.arange(28)) == 1, (
        "a perfect order is no >99.9%"
    )
    assert average_precision(labels, np.array([1.0, 1, 1, 1])) == pytest.approx(0.5), (
        "ties are taken together"
    )
    assert area_under_curve(labels, np.array([4.0, 3, 2, 1])) == pytest.approx(0.75)
    assert area_under_curve(labels, np.array([1.0, 1, 1, 1])) == pytest.approx(0.5)
    assert (
        average_precision(np.zeros(3), np.arange(3.0)) is None
        and area_under_curve(np.ones(3), np.arange(3.0)) is None
    )


def test_calibration_of_several_weeks_is_that_of_all_their_predictions() -> None:
    """Two weeks that miss by .2 to both sides: together they are right."""
    scores = np.full(10, 0.5)
    weeks = [metrics((np.arange(10) < count).astype(float), scores) for count in (3, 7)]
    assert [week["calibration_error"] for week in weeks] == pytest.approx([0.2, 0.2])
    assert calibration_error(weeks) == pytest.approx(0)
    assert calibration_error([metrics(np.zeros(0), np.zeros(0))]) is None


def test_metrics_have_an_interval_and_nulls_where_nothing_is() -> None:
    row = metrics(np.array([1.0, 0, 1, 0] * 20), np.array([0.9, 0.2, 0.6, 0.4] * 20))
    low, high = row["average_precision_interval"]
    assert low <= row["average_precision"] <= high and (row["tpr"], row["tnr"]) == (1, 1)
    assert row["brier"] == pytest.approx((0.01 + 0.04 + 0.16 + 0.16) / 4)
    assert row["calibration_error"] == pytest.approx((0.1 + 0.2 + 0.4 + 0.4) / 4)
    nothing = metrics(np.zeros(0), np.zeros(0))
    assert (
        nothing["rows"] == 0 and nothing["average_precision"] is None and nothing["brier"] is None
    )


def test_labels_count_the_coming_weeks_only() -> None:
    values = np.zeros((len(MEASURES), 21, 2))
    values[0, 7:14] = [[1, 2]] * 7  # 7 and 14 accesses in the second week
    values[1, 7] = [9, 2]
    series = Series(
        tuple(FIRST + timedelta(days=i) for i in range(21)), ("/a/b/C", "/a/c/C"), values
    )
    assert Label(7).mark(series, 7).tolist() == [0, 1]
    assert Label(6, users=5).mark(series, 7).tolist() == [1, 0]
    assert Label(10, weeks=2).mark(series, 0).tolist() == [0, 1]
    assert Label(1).mark(series, 14).tolist() == [0, 0]


def test_features_of_a_day_by_hand() -> None:
    values = np.zeros((len(MEASURES), 10, 2))
    values[0, 2, 0], values[0, 8, 0] = 5, 3
    past = Series(
        tuple(FIRST + timedelta(days=i) for i in range(10)), ("/a/b/C", "/d/e/F"), values
    )
    columns, rows = features(past, Names(past.datasets))
    of = {name: rows[:, number] for number, name in enumerate(columns)}
    assert of["log_accesses_1d"].tolist() == [0, 0] and of["log_accesses_2d"][0] == pytest.approx(
        np.log1p(3)
    )
    assert of["log_accesses_28d"][0] == pytest.approx(np.log1p(8 / 10 * 28)), (
        "a longer window is scaled to its length"
    )
    assert of["log_recency_days"].tolist() == [
        pytest.approx(np.log1p(1)),
        pytest.approx(np.log1p(10)),
    ]
    assert of["log_age_days"].tolist() == [pytest.approx(np.log1p(8)), 0]
    assert of["active_share_7d"][0] == pytest.approx(1 / 7)
    assert of["log_gap_days"].tolist() == [pytest.approx(np.log1p(6)), pytest.approx(np.log1p(10))]
    assert of["log_run_days"].tolist() == [0, 0] and of["log_peak_day"].tolist() == [
        pytest.approx(np.log1p(5)),
        0,
    ]
    assert of["log_peak_age_days"].tolist() == [
        pytest.approx(np.log1p(8)),
        pytest.approx(np.log1p(10)),
    ]
    assert of["spread_28d"][0] == pytest.approx(np.log1p([0, 0, 5, 0, 0, 0, 0, 0, 3, 0]).std())
    values[0, 7:10, 1] = 1
    _, again = features(Series(past.days, past.datasets, values), Names(past.datasets))
    assert again[1, columns.index("log_run_days")] == pytest.approx(np.log1p(3)), (
        "the last three days"
    )
    assert all(np.isfinite(column).all() for column in of.values())


def test_features_of_siblings_count_datasets_from_their_first_use_on() -> None:
    values = np.zeros((len(MEASURES), 14, 3))
    values[0, 2:7, 0], values[0, 9:, 2] = 5, 100
    names = ("/a/b-v1/C", "/a/b-v2/C", "/a/b-v3/C")
    series = Series(tuple(FIRST + timedelta(days=i) for i in range(14)), names, values)
    columns, rows = features(series.until(7), Names(names))
    of = {name: rows[:, number] for number, name in enumerate(columns)}
    assert of["siblings_primary"].tolist() == [pytest.approx(np.log1p(25))] * 3
    assert of["all_datasets"].tolist() == [pytest.approx(np.log1p(25))] * 3
    check_later_days(Weeks(series, Label(10)), [7])


def test_a_dataset_of_later_days_that_changes_others_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series = made_series()
    values = series.values.copy()
    values[:, :32, 5] = 0
    first_rows = np.where(np.arange(60) == 5, 32, 0)
    late = Series(series.days, series.datasets, values, first_rows=first_rows)
    real = feature_code.features

    def with_all_names(past: Series, names: Names) -> tuple[list[str], Any]:
        columns, rows = real(past, names)
        return [*columns, "names"], np.append(
            rows, np.full((len(rows), 1), float(len(past.datasets))), axis=1
        )

    check_later_days(Weeks(late, Label(10)), [32])
    monkeypatch.setattr(training_code, "features", with_all_names)
    with pytest.raises(errors.DataError, match="later days are deleted"):
        check_later_days(Weeks(late, Label(10)), [32])


def test_top_by_bytes_and_longer_horizons_have_their_labels_and_persistence() -> None:
    series = made_series(days=63)
    generator = np.random.default_rng(3)
    values = series.values.copy()
    values[2] = values[0] * generator.lognormal(20, 1, len(series.datasets))
    sized = replace(series, values=values)
    label = Label(top_bytes=8)
    assert Label(1_234_567).describe() == "more than 1,234,567 accesses in 1 week"
    assert label.mark(sized, 35).sum() == 8 and label.describe().startswith("among the 8 datasets")
    chosen = np.argsort(-sized.values[2, 35:42].sum(0))[:8]
    assert set(np.nonzero(label.mark(sized, 35))[0]) == set(chosen)
    before = predict(Weeks(sized, label), 35, "persistence")
    assert set(np.nonzero(before)[0]) == set(np.argsort(-sized.values[2, 28:35].sum(0))[:8])
    with pytest.raises(errors.DataError, match="the series has no bytes"):
        judge_last(Weeks(series, label), ["persistence"])
    month = Label(40, weeks=4)
    popular = predict(Weeks(sized, month), 35, "persistence")
    assert popular.tolist() == (sized.accesses[7:35].sum(0) > 40).astype(float).tolist()
    exact = values.copy()
    exact[0] = np.where(np.arange(63)[:, None] == 34, 232, 0)
    before = predict(Weeks(replace(series, values=exact), Label(232)), 35, "persistence")
    assert not before.any(), "as many accesses as the threshold are not more"
    both = Label(10, users=5)
    wanted = (sized.accesses[28:35].sum(0) > 10) & (sized.values[1, 28:35].sum(0) > 5)
    assert predict(Weeks(sized, both), 35, "persistence").tolist() == wanted.astype(float).tolist()


@pytest.mark.parametrize("kind", ["none", "all"])
def test_weeks_in_which_nothing_or_everything_is_popular_are_judged_with_nulls(kind: str) -> None:
    series = made_series(52)
    values = series.values.copy()
    values[0] = 0 if kind == "none" else values[0] + 5
    values[0, 0] += 1
    rows = judge_last(
        Weeks(replace(series, values=values), Label(10)), ["persistence", "logistic"], last=2
    )
    assert len(rows) == 4 and {row["auc"] for row in rows} == {None}
    assert {row["average_precision"] for row in rows} == ({None} if kind == "none" else {1.0})
    assert all(0 <= row["brier"] < 0.1 for row in rows)


def test_one_dataset_and_days_with_gaps_are_predicted() -> None:
    series = made_series(52).only(np.array([3]))
    rows = judge_last(Weeks(series, Label(1)), ["persistence", "logistic"], last=2)
    assert [row["rows"] for row in rows] == [1] * 4
    values = series.values.copy()
    values[:, 5:30] = 0
    assert (
        len(judge_last(Weeks(replace(series, values=values), Label(1)), ["logistic"], last=1)) == 1
    )


@pytest.mark.parametrize("name", list(MODELS))
def test_each_model_beats_guessing_and_its_seed_is_fixed(name: str) -> None:
    series = made_series()
    weeks, day = Weeks(series, Label(10)), 32
    labels, scores = Label(10).mark(series, day), predict(weeks, day, name)
    precision = average_precision(labels, scores)
    assert precision is not None and precision > labels.mean() + 0.15
    assert ((scores >= 0) & (scores <= 1)).all() and (predict(weeks, day, name) == scores).all()
    assert name in ABOUT


def test_a_calibration_keeps_the_order_even_where_a_week_was_the_opposite() -> None:
    raw = np.linspace(0.001, 0.999, 400)
    weights = calibration([(raw, (raw < 0.5).astype(float))])
    assert (weights[:3] > 0).all() and (np.diff(calibrated(raw, weights)) > 0).all()


def test_later_days_change_no_prediction() -> None:
    series = made_series()
    whole = predict(Weeks(series, Label(10)), 32, "blend")
    cut = predict(Weeks(series.until(32), Label(10)), 32, "blend")
    assert (whole == cut).all()


def test_a_feature_that_changes_with_later_days_fails_the_run() -> None:
    series = made_series()

    class Careless(Weeks):
        def rows(self, day: int) -> Any:
            return super().rows(day) + self.series.accesses.mean()

    weeks = Careless(series, Label(10))
    with pytest.raises(errors.DataError, match="later days are deleted"):
        check_later_days(weeks, series.mondays()[-1:])


def test_strata_part_the_datasets() -> None:
    series = made_series()
    parts = strata(series, 30)
    assert (sum(part.astype(int) for part in parts.values()) == 1).all() and set(parts) == {
        "active",
        "dormant",
        "new",
    }


def test_evaluation_has_a_row_for_each_week_and_model() -> None:
    rows = judge_last(Weeks(made_series(52), Label(10)), ["persistence", "logistic"], last=2)
    assert [(row["week"].weekday(), row["model"]) for row in rows] == [
        (0, "persistence"),
        (0, "logistic"),
    ] * 2
    with pytest.raises(errors.InputMissing, match="no week can be predicted"):
        judge_last(Weeks(made_series(days=12), Label(10)), ["persistence"])


@pytest.mark.parametrize("first", [FIRST, date(2026, 1, 5), date(2026, 1, 6)])
@pytest.mark.parametrize("horizon", [1, 2])
def test_a_short_series_says_how_many_days_it_needs_and_they_are_enough(
    first: date, horizon: int
) -> None:
    label = Label(10, weeks=horizon)
    whole = made_series(60, 8)
    days = tuple(first + timedelta(days=number) for number in range(60))
    series = replace(whole, days=days)
    with pytest.raises(errors.InputMissing) as caught:
        evaluated_days(series.until(9), label)
    assert str(caught.value.found) == f"9 days, {first} to {days[8]}"
    found = re.search(r"give (\d+) days, to (\S+), or begin earlier", str(caught.value.next_step))
    assert found is not None
    needed = int(found[1])
    assert (
        found[2] == str(days[needed - 1]) and len(evaluated_days(series.until(needed), label)) == 1
    )
    with pytest.raises(errors.InputMissing):
        evaluated_days(series.until(needed - 1), label)


def test_a_short_history_is_forecast_by_persistence_and_a_longer_one_by_the_model() -> None:
    """From 7 days on, and from 28 days on; the rule names the days on which it changes."""
    label, series = Label(10), made_series()
    names = [label.model_on(series, day, "blend") for day in (7, 27, 28)]
    assert names == ["persistence", "persistence", "blend"]
    rule = label.rule(series.days[0], "blend")
    for day in (7, 28):
        assert f"(from {series.days[0] + timedelta(days=day)} on)" in rule
    with pytest.raises(errors.InputMissing) as caught:
        label.model_on(series, 6, "blend")
    assert rule in str(caught.value.next_step)
    assert Label(10, weeks=4).model_on(series, 34, "blend") == "persistence"
    short = Weeks(series.until(9), label)
    assert predictions(short, series.days[9], "blend")["model"].unique().to_list() == [
        "persistence"
    ]
    rows = judge_last(Weeks(series.until(27), label), ["persistence", "logistic"])
    assert {row["model"] for row in rows} == {"persistence"}


def test_many_rows_are_sampled_and_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    series = made_series(days=60)
    quiet = np.zeros((len(MEASURES), 60, 400))
    names = (*series.datasets, *(f"/Z/quiet-v{number:03}/RAW" for number in range(400)))
    values = np.concatenate([series.values, quiet], axis=2)
    wide = Series(series.days, names, values, first_rows=np.zeros(460, int))
    monkeypatch.setattr(training_code, "MOST_ROWS", 2_000)
    training = Weeks(wide, Label(10)).training(60)
    assert len(training.rows) < 2_100 and set(np.diff(np.unique(training.days))) == {7}
    by_day = [training.weights[training.days == day].sum() for day in np.unique(training.days)]
    assert by_day == pytest.approx([460] * len(by_day)), "each day stands for all datasets"
    assert (training.weights > 1).any() and (training.labels[training.weights > 1] == 0).all()
    fitted = fit(Weeks(wide, Label(10)), 60, "logistic")
    scores = fitted.model.predict(Weeks(wide, Label(10)).rows(60))
    assert scores[:60].mean() > 10 * scores[60:].mean()
