"""What a forecast says beside the probability: quantiles, reasons, baselines,
calibration that helps.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from cmsspark.apps.popularity.cli import command
from cmsspark.apps.popularity.evaluate import calibrated, calibration, fit, with_newest_share
from cmsspark.apps.popularity.forecast import expected, predictions, reasons
from cmsspark.apps.popularity.models import sigmoid
from cmsspark.apps.popularity.scores import metrics, warnings, with_baselines
from cmsspark.apps.popularity.series import Series
from cmsspark.apps.popularity.training import Label, Weeks
from tests.apps.popularity.example_series import made_series, write

DAY = 45


def with_bytes(series: Series) -> Series:
    values = series.values.copy()
    values[2] = values[0] * 1e9
    return replace(series, values=values)


def test_quantiles_are_in_order_and_most_datasets_lie_between_them() -> None:
    series = made_series(days=70, datasets=300)
    weeks, inside = Weeks(series, Label(10)), []
    for day in (49, 56, 63):
        found = expected(weeks, day, "accesses")
        assert found is not None and (np.diff(found, axis=1) >= 0).all() and (found >= 0).all()
        low, middle, high = found.T
        happened = series.accesses[day : day + 7].sum(0)
        inside.append(((happened >= low - 1e-6) & (happened <= high + 1e-6)).mean())
        assert np.corrcoef(np.log1p(middle), np.log1p(happened))[0, 1] > 0.8
    assert 0.7 < np.mean(inside) < 0.92


def test_quantiles_know_no_later_day_and_no_measure_that_there_is_not() -> None:
    series = made_series(days=60)
    found, cut = (
        expected(Weeks(each, Label(10)), DAY, "accesses") for each in (series, series.until(DAY))
    )
    assert found is not None and cut is not None and np.array_equal(found, cut)
    assert expected(Weeks(series, Label(10)), DAY, "bytes") is None


@pytest.mark.parametrize("model", ["logistic", "boosting", "blend"])
def test_reasons_name_columns_that_move_the_probability(model: str) -> None:
    series = with_bytes(made_series())
    weeks = Weeks(series, Label(10))
    fitted = fit(weeks, DAY, model)
    rows = weeks.rows(DAY)
    moved = fitted.model.contributions(rows)
    assert moved is not None and moved.shape == rows.shape
    # The sum of the changes orders the datasets as the model does.
    raw = fitted.model.predict(rows)
    assert np.corrcoef(moved.sum(1), np.log(raw / (1 - raw)))[0, 1] > 0.95
    texts = reasons(weeks.columns, moved)
    assert all(text is None or text.split(" ")[0] in weeks.columns for text in texts)
    assert reasons(weeks.columns, None) == []


def test_a_forecast_has_amounts_reasons_and_what_it_rests_on() -> None:
    series = with_bytes(made_series())
    names = list(series.datasets)
    names[4], names[5] = "/Alone/Nothing-v1/XYZ", "/P1/Other-v7/XYZ"
    values = series.values.copy()
    values[:, :, 4:6] = 0
    weeks = Weeks(replace(series, datasets=tuple(names), values=values), Label(10))
    rows = predictions(weeks, series.days[-1] + timedelta(days=1), "boosting")
    by_name = {row["dataset_name"]: row for row in rows.to_dicts()}
    unknown, sibling = by_name[names[4]], by_name[names[5]]
    assert (unknown["basis"], unknown["probability"], unknown["expected_nacc"]) == (
        "unknown",
        None,
        None,
    )
    assert unknown["rank"] == 60 and unknown["stratum"] == "new"
    assert (
        sibling["basis"] == "siblings"
        and 0 <= sibling["probability"] <= 1
        and sibling["nacc_p90"] >= 0
    )
    others = [row for row in by_name.values() if row["basis"] == "use"]
    assert len(others) >= 50 and all(
        row["nacc_p10"] <= row["nacc_p50"] <= row["nacc_p90"] for row in others
    )
    assert all(row["expected_bytes"] is not None for row in others) and others[0]["reasons"]
    assert [row["rank"] for row in rows.to_dicts()] == list(range(1, 61))


@pytest.mark.parametrize("slope", [0.4, 1.0, 2.5])
def test_calibrated_probabilities_are_right_at_both_ends(slope: float) -> None:
    """The odds of the forecast are right if their logarithm is multiplied by ``slope``."""
    generator = np.random.default_rng(3)
    odds = generator.normal(0, 2, (5, 4000))
    labels = (generator.random(odds.shape) < sigmoid(slope * odds)).astype(float)
    weights = calibration([(sigmoid(odds[week]), labels[week]) for week in range(4)])
    row = metrics(labels[4], calibrated(sigmoid(odds[4]), weights))
    assert (
        row["calibration_error"]
        <= 0.03
        < metrics(labels[4], 0.5 * sigmoid(odds[4]))["calibration_error"]
    )
    assert weights[1] == pytest.approx(slope, rel=0.15) and abs(weights[3]) < 0.1


def test_the_ends_have_slopes_of_their_own() -> None:
    """Of 4,000 datasets with .01 a tenth become popular; those in the middle are right."""
    generator = np.random.default_rng(3)
    raw = np.repeat([0.01, 0.5], 4000)
    actual = np.repeat([0.1, 0.5], 4000)
    weeks = [(raw, (generator.random(8000) < actual).astype(float)) for _ in range(4)]
    low, middle = calibrated(np.array([0.01, 0.5]), calibration(weeks))
    assert low == pytest.approx(0.1, abs=0.02) and middle == pytest.approx(0.5, abs=0.05)


def test_what_all_of_a_week_did_is_believed_as_far_as_weeks_agree() -> None:
    """Odds that are shifted alike in each week, and up and down by turns."""
    generator = np.random.default_rng(3)
    odds = generator.normal(0, 2, (4, 2000))
    shifts = {}
    for name, of_week in {"alike": [1.5] * 4, "by turns": [0.9, -0.6, 0.9, -0.6]}.items():
        actual = sigmoid(odds + np.array(of_week)[:, None])
        labels = (generator.random(odds.shape) < actual).astype(float)
        weeks = [(sigmoid(raw), labels[week]) for week, raw in enumerate(odds)]
        shifts[name] = calibration(weeks)[3]
    assert shifts["alike"] > 1.2 and shifts["by turns"] == 0


def test_a_forecast_follows_the_newest_week_where_such_weeks_foretold_the_next() -> None:
    """Shares wander from .3 to .7; the forecasts know nothing of it, or all of it."""
    generator = np.random.default_rng(3)
    shares, none = [0.3, 0.4, 0.5, 0.6, 0.7], np.array([1.0, 1, 1, 0])
    labels = [(generator.random(2000) < share).astype(float) for share in shares]
    raw = {"unaware": [0.5] * 5, "aware": shares}
    means = {}
    for name, forecasts in raw.items():
        past = [(np.full(2000, p), of_week) for p, of_week in zip(forecasts, labels, strict=True)]
        of_next = np.full(100, forecasts[-1])
        weights = with_newest_share(none, past[::-1], [0.6, 0.5, 0.4, 0.3, 0.2], of_next, 0.7)
        means[name] = float(calibrated(of_next, weights).mean())
    assert means["unaware"] > 0.6 and means["aware"] == pytest.approx(0.7, abs=0.01)
    aside = with_newest_share(none, past[::-1], [0.6, 0.5, 0.4, 0.3, 0.2], of_next, 0.2)
    assert calibrated(of_next, aside).mean() > 0.65, "a forecast that knew its weeks stays"


def test_a_warning_says_where_a_baseline_was_better() -> None:
    rows = [
        {"model": name, "average_precision": value}
        for name, values in {
            "blend": (0.5, 0.7),
            "decayed": (0.6, 0.66),
            "last-week": (0.9, None),
        }.items()
        for value in values
    ]
    (text,) = warnings(rows, "blend")
    assert text.startswith(
        "in the last 2 weeks the baseline last-week was better than blend: average precision 0.900"
    )
    assert warnings(rows, "decayed") == [] and warnings(rows[:2], "blend") == []
    equal = [
        {"model": "blend", "average_precision": 0.9994},
        {"model": "last-week", "average_precision": 1.0},
    ]
    assert warnings(equal, "blend")[0].startswith("in the last week the baseline last-week")
    equal[0]["average_precision"] = 0.99996
    assert warnings(equal, "blend") == [], "both are printed as 1.000"
    assert with_baselines(["blend"]) == ("persistence", "last-week", "decayed", "blend")
    assert with_baselines(["persistence"] * 2) == ("persistence",)
    assert with_baselines(["blend", "decayed", "blend"]) == with_baselines(["blend"])


def test_ties_are_told(tmp_path: Path) -> None:
    file = write(made_series(), tmp_path / "a.csv")
    shown = CliRunner().invoke(
        command, ["predict", "--accesses", str(file), "--model", "persistence", "--top", "5"]
    )
    assert "5 rows share a probability as shown, such as 1.000" in shown.stdout
