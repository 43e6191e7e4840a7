"""Stored rows are the same, whether they are read without a JVM or handed over by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmsspark.pipeline import stored_rows as stored
from cmsspark.storage import LocalFiles
from cmsspark.store.results import current
from tests.publish.days import DAY, SPEC, row, rows, store_day


@pytest.mark.smoke
def test_spark_hands_over_the_rows_that_pyarrow_reads(spark: Any, tmp_path: Path) -> None:
    given = [*rows(5), row(5, cpu_time=1.25, remote_nacc=2), row(5, app="fuse")]
    store = store_day(tmp_path, given)
    found = current(LocalFiles(), store, "data_aggregation", "data_aggregation", DAY)
    assert list(stored.stored_rows(found, SPEC.table)) == given
    handed = list(stored._spark_rows(f"file://{found.path}", SPEC.table, "parquet"))
    assert sorted(handed, key=str) == sorted(given, key=str)
