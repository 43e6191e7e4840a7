"""Pictures of what was read: accesses without jobs, or jobs where a result has nothing else."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from cmsspark.filesystems.storage import LocalFiles
from cmsspark.pages import pictures
from cmsspark.pages.pictures import load_use
from cmsspark.store import results
from cmsspark.store.own_jobs import find_job
from tests.apps.dashboard import stores
from tests.apps.dashboard.stores import LAST


def _use_rows(*rows: tuple[str, str, int, int | None, float | None]) -> Any:
    """(stream, dataset, count, bytes, CPU seconds) as stored rows."""
    return pa.Table.from_pylist(
        [
            {
                "stream": stream,
                "dataset_name": dataset,
                "site_name": "T2_CH_CERN",
                "app": "crab",
                "nacc": count,
                "remote_nacc": 0,
                "read_bytes": size,
                "cpu_time": cpu,
                "data_tier": "AOD",
            }
            for stream, dataset, count, size, cpu in rows
        ]
    )


def test_pictures_of_accesses_have_no_jobs_in_them() -> None:
    rows = _use_rows(
        ("aaa", "/a/b/AOD", 3, 100, None),
        ("condor", "/a/b/AOD", 90_000, 7_000, 7200.0),
        ("condor", "/only/jobs/AOD", 500_000, 9_000, 3600.0),
    )
    days = {
        date(2026, 1, 14): {"aaa": 5, "condor": 70_000},
        date(2026, 1, 15): {"aaa": 3, "condor": 590_000},
    }
    use = pictures.sum_use(rows, days)
    assert (use.nacc, use.dataset_count, use.read_bytes, use.job_count, use.cpu_hours) == (
        3,
        1,
        100,
        590_000,
        3.0,
    )
    assert use.datasets == [("/a/b/AOD", 3)] and use.sites == [("T2_CH_CERN", 3)]
    assert use.heat == {("T2_CH_CERN", "AOD"): 3} and [name for name, _ in use.places] == ["aaa"]
    assert use.trend == {"aaa": [5, 3]} and use.tiers_cpu_hours == [("AOD", 3.0)]
    assert ("590 k", "jobs (not accesses)") in pictures.facts(use) and (
        "3",
        "accesses",
    ) in pictures.facts(use)


def test_pictures_of_a_job_that_counts_jobs_say_so() -> None:
    use = pictures.sum_use(_use_rows(("condor", "/a/b/AOD", 90_000, 7_000, 7200.0)))
    assert (use.unit, use.nacc, use.read_bytes, use.job_count) == ("jobs", 90_000, 7_000, None)
    drawn = {picture.name: picture for picture in pictures.pictures(use, "on 15 January 2026")}
    assert drawn["datasets"].about.startswith("jobs on 15 January 2026")
    assert all("accesses" not in picture.about for picture in drawn.values())


def test_a_day_that_did_not_count_a_stream_has_no_number_of_it(tmp_path: Path) -> None:
    rows = stores.partial_rows(LAST, count=60)
    without = [row for row in rows if row["stream"] != "eos"]
    days = [LAST - timedelta(days=number) for number in (2, 1, 0)]
    stores.store_day(tmp_path, days[0], rows)
    stores.store_day(tmp_path, days[1], without, missing_streams=["eos"], partial=True)
    stores.store_day(tmp_path, days[2], without)
    files = LocalFiles()
    current = results.current(files, str(tmp_path), "data_aggregation", "data_aggregation", LAST)
    use = load_use(files, str(tmp_path), find_job("data_aggregation"), current, LAST)
    assert use.days == days and use.trend["eos"][0] and use.trend["eos"][1:] == [None, 0]
    assert all(use.trend["aaa"])
