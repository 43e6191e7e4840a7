"""Stored rows are the same on the local disk and elsewhere, where their parts are
fetched without a Spark job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import DataError
from cmsspark.filesystems import hadoop
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import stored_columns as stored
from cmsspark.store.part_files import stored_parts
from cmsspark.store.results import CurrentTable, current
from tests.publish.days import DAY, SPEC, row, rows, store_day


@pytest.mark.smoke
def test_rows_of_another_file_system_are_fetched_part_by_part_and_no_job_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*rows(5), row(5, cpu_time=1.25, remote_nacc=2), row(5, app="fuse")]
    store = store_day(tmp_path, given)
    found = current(LocalFiles(), store, "data_aggregation", "data_aggregation", DAY)
    assert len(list(Path(found.path).glob("part-*"))) == 2
    assert list(stored.stored_rows(found, SPEC.table)) == given
    # Hadoop's file system, though the files are local.
    fetched: list[str] = []
    fetch = hadoop.HadoopFiles.fetch
    monkeypatch.setattr(
        hadoop.HadoopFiles,
        "fetch",
        lambda self, path, to: fetched.append(path) or fetch(self, path, to),
    )
    for module in ("filesystems.opening", "store.stored_columns"):
        monkeypatch.setattr(
            f"cmsspark.{module}.is_local", lambda location: location.startswith("/")
        )
    monkeypatch.setattr("cmsspark.store.part_files.is_local", lambda path: path.startswith("/"))
    remote = CurrentTable(f"file://{found.path}", found.manifest)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    assert list(stored.stored_rows(remote, SPEC.table)) == given
    assert len(fetched) == 2
    assert set(tracker.getJobIdsForGroup()) == before


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    store = store_day(tmp_path, rows(5))
    found = current(LocalFiles(), store, "data_aggregation", "data_aggregation", DAY)
    part = next(Path(found.path).glob("part-*"))
    part.write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=part.name):
        list(stored.stored_rows(found, SPEC.table))


@pytest.mark.parametrize(
    "read", [stored.part_rows, lambda *given: list(stored.row_groups(*given))]
)
def test_a_part_without_a_column_that_is_asked_for_is_named(tmp_path: Path, read: Any) -> None:
    store = store_day(tmp_path, rows(5))
    found = current(LocalFiles(), store, "data_aggregation", "data_aggregation", DAY)
    part = stored_parts(LocalFiles(), found, "data_aggregation")[0]
    with pytest.raises(DataError, match=part.name):
        read(LocalFiles(), part, SPEC.table, ["nacc", "no_such_column"])
