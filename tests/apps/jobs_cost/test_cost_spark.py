"""The jobs on costs in Spark: how many jobs, stages and files a day takes. A change
that adds one fails here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.demo.make import make
from cmsspark.apps.jobs_cost import day_run, feeds
from cmsspark.store.own_jobs import JOBS
from tests.apps.jobs_cost.cells import count, rows
from tests.apps.jobs_cost.test_cost_cells import DAY
from tests.apps.usage.test_spark_costs import jobs_of


@pytest.mark.parametrize("feed", [feeds.CONDOR, feeds.WMARCHIVE], ids=lambda feed: feed.name)
def test_a_day_is_one_spark_job_of_two_stages_and_a_file_a_table(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: feeds.Feed
) -> None:
    make(tmp_path / "root", DAY, records=2_000, files=300, datasets=20, people=20)
    cells, tasks = [], []
    for size in (day_run._MERGE_BYTES, 10_000):
        monkeypatch.setattr(day_run, "_MERGE_BYTES", size)
        done: list[Any] = []
        fout = tmp_path / str(size)
        found = jobs_of(
            spark,
            lambda fout=fout, done=done: done.append(
                count(tmp_path / "root", DAY, fout, feed, engine="spark")
            ),
        )
        assert (len(found.jobs), found.stages_that_ran) == (1, 2)
        assert {table.files for table in done[0].manifest.tables.values()} == {1}
        assert {*done[0].manifest.tables} == {*JOBS[feed.job].tables}
        cells.append(
            [rows(done[0], table) for table in JOBS[feed.job].tables if not table.endswith("ids")]
        )
        tasks.append(sum(found.tasks))
    assert cells[0] == cells[1]
    assert all(cells[0])
    assert tasks[1] > tasks[0], "several partitions"
