"""Tasks on Spark are those of this process."""

from __future__ import annotations

from typing import Any

import pytest

from cmsspark.base import errors
from cmsspark.engines.worker_pool import map_tasks


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
