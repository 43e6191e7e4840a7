"""Popularity on Spark: models of pyspark.ml, and tuning with a task for each configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cmsspark.apps.popularity.fitting import fit
from cmsspark.apps.popularity.scores import average_precision
from cmsspark.apps.popularity.spark_models import SparkModel
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.apps.popularity.tuning import configurations, parse_grid, tune
from cmsspark.base import errors
from cmsspark.engines.parallel_tasks import map_tasks
from tests.apps.popularity.example_series import made_series


@pytest.mark.parametrize("kind", ["logistic", "forest"])
def test_a_model_of_spark_beats_guessing_and_comes_back_from_its_file(
    spark: object, kind: str
) -> None:
    series = made_series(days=30, datasets=40)
    weeks, day = Weeks(series, Label(10)), 22
    training = weeks.training(day)
    model = SparkModel(kind, {"numTrees": 10} if kind == "forest" else {})
    model.fit(training, seed=1)
    labels, scores = Label(10).mark(series, day), model.predict(weeks.rows(day))
    precision = average_precision(labels, scores)
    assert precision is not None and precision > labels.mean() + 0.15
    assert scores.min() >= 0 and scores.max() <= 1
    loaded = SparkModel(kind, {})
    loaded.load(model.save())
    assert loaded.predict(weeks.rows(day)).tolist() == scores.tolist()


def double(shared: int, piece: int) -> dict[str, Any]:
    if piece < 0:
        raise errors.DataError("a piece is negative", found=str(piece), next_step="take another")
    return {"sum": shared + piece}


def test_pieces_on_spark_are_those_of_this_process_in_order(spark: Any) -> None:
    pieces = [3, 1, 2, 1]
    assert (
        map_tasks(double, 10, pieces, spark)
        == map_tasks(double, 10, pieces)
        == [{"sum": value} for value in (13, 11, 12, 11)]
    )
    assert map_tasks(double, 10, [], spark) == []
    with pytest.raises(errors.DataError, match="a piece is negative"):
        map_tasks(double, 10, [-1], spark)


def test_tuning_on_spark_is_the_tuning_of_this_process(spark: Any) -> None:
    series, grid = made_series(), {"ridge": [3.0, 300.0]}
    here = tune(series, Label(10), "logistic", grid, weeks=2)
    there = tune(series, Label(10), "logistic", grid, weeks=2, spark=spark)
    # The order of a sum in BLAS depends on its threads, and calibration by Newton's
    # steps makes more of it.
    assert [row.keys() for row in there] == [row.keys() for row in here]
    for row, wanted in zip(there, here, strict=True):
        assert all(
            row[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)
            for name, value in wanted.items()
        )
    assert {row["options"]["ridge"] for row in here} == {3.0, 300.0}
    assert (
        here[0]["average_precision"] >= here[1]["average_precision"] and len(here[0]["weeks"]) == 2
    )


def test_tuning_does_not_see_the_week_that_is_held_back() -> None:
    series, grid = made_series(), {"ridge": [3.0, 300.0]}
    rows = tune(series, Label(10), "logistic", grid, weeks=2)
    values = series.values.copy()
    held = series.mondays()[-1]
    values[0, held:] = np.random.default_rng(2).poisson(30, values[0, held:].shape)
    again = tune(replace(series, values=values), Label(10), "logistic", grid, weeks=2)
    for name in ("options", "average_precision", "brier"):
        assert [row[name] for row in rows] == [row[name] for row in again]
    assert rows[0]["held_brier"] != again[0]["held_brier"]


def test_grids_are_read_and_wrong_ones_refused() -> None:
    assert parse_grid("boosting", ["max_depth=2,3", "rounds=50"]) == {
        "max_depth": [2, 3],
        "rounds": [50],
    }
    assert len(configurations(parse_grid("forest", []))) == 18
    for model, texts in (
        ("blend", []),
        ("forest", ["luck=1"]),
        ("forest", ["max_depth=deep"]),
        ("forest", ["2"]),
    ):
        with pytest.raises(errors.UsageError):
            parse_grid(model, texts)
    for values in (
        "max_depth=2.5",
        "max_depth=true",
        "max_depth=-3",
        "colsample_bynode=1.5",
        "max_depth=null",
    ):
        with pytest.raises(errors.UsageError, match=r"not a (whole )?number above 0"):
            parse_grid("forest", [values])
    with pytest.raises(errors.InputMissing, match="too few weeks"):
        tune(made_series(days=20), Label(10), "logistic", {"ridge": [1.0]})


def test_options_change_a_model() -> None:
    weeks = Weeks(made_series(), Label(10))
    usual, tight = (
        fit(weeks, 32, "logistic", options=options) for options in (None, {"ridge": 1e6})
    )
    assert (
        usual.model.predict(weeks.rows(32)).std() > 2 * tight.model.predict(weeks.rows(32)).std()
    )
