"""Popularity on Spark: models of pyspark.ml, and tasks beside them."""

from __future__ import annotations

from typing import Any

import pytest

from cmsspark.apps.popularity.models import SparkModel
from cmsspark.apps.popularity.scores import average_precision
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base import errors
from cmsspark.engines.worker_pool import map_tasks
from tests.apps.popularity.example_series import made_series


@pytest.mark.parametrize("kind", ["logistic", "forest"])
def test_a_model_of_spark_beats_guessing_and_comes_back_from_its_file(
    spark: object, kind: str
) -> None:
    series = made_series(days=30, datasets=40)
    weeks, day = Weeks(series, Label(10)), 22
    training = weeks.training(day)
    model = SparkModel(kind)
    model.fit(training, seed=1)
    labels, scores = Label(10).mark(series, day), model.predict(weeks.rows(day))
    precision = average_precision(labels, scores)
    assert precision is not None and precision > labels.mean() + 0.15
    assert scores.min() >= 0 and scores.max() <= 1
    loaded = SparkModel(kind)
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
