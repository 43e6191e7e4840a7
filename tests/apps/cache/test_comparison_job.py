"""The job cache_comparison: sites × sizes × policies, here and on Spark, with the
numbers of cache compare.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.apps.cache import comparison_job
from cmsspark.base import errors
from cmsspark.base.periods import between
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.settings.settings import load_settings
from cmsspark.store import results
from cmsspark.store.stored_columns import table_rows
from tests.run.partial_days import partial, store_partials, store_table

FIRST = date(2026, 1, 5)
WEEK = between(FIRST, FIRST + timedelta(days=13))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number, day in enumerate(WEEK.days):
        chosen = [(number * 3 + step) % 8 for step in range(4)]
        rows = [
            partial(day, dataset_name=f"/D{i}/x/AOD", site_name=f"T2_{'AB'[i % 2]}", nacc=3)
            for i in chosen
        ]
        store_partials(
            tmp_path, day, [*rows, partial(day, dataset_name="/D0/x/AOD", site_name="unknown")]
        )
    sizes = [
        {
            "day": FIRST,
            "dataset_name": f"/D{i}/x/AOD",
            "dataset_bytes": 1000 * (i + 1),
            "file_count": 1,
            "invalid_file_count": 0,
            "timestamp": 1,
        }
        for i in range(8)
    ]
    store_table(tmp_path, "dbs_events", "dbs_events", FIRST, sizes)
    (tmp_path / "cmsspark.yaml").write_text(f"store: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    return tmp_path


def made(store: Path, spark: Any = None, **options: Any) -> list[dict[str, Any]]:
    settings = load_settings(str(store / "cmsspark.yaml"))
    comparison_job.run(WEEK, str(store), settings, spark, log=lambda text: None, **options)
    current = results.current(
        LocalFiles(), str(store), "cache_comparison", "cache_comparison", WEEK
    )
    names = stored_table("cache_comparison").names
    rows: list[dict[str, Any]] = table_rows(
        LocalFiles(), current, "cache_comparison", names
    ).to_pylist()
    return rows


def test_each_site_size_and_policy_has_the_numbers_of_cache_compare(store: Path) -> None:
    rows = made(store, policies=("lru", "gdsf"), shares=(0.2, 0.5), with_bound=True)
    keys = [(row["site_name"], row["capacity_share"], row["policy"]) for row in rows]
    sites = ("T2_A", "T2_B", "all")
    assert keys == [
        (site, share, policy)
        for site in sites
        for share in (0.2, 0.5)
        for policy in ("lru", "gdsf")
    ]
    for site in sites:
        words = ["--from", str(WEEK.first), "--to", str(WEEK.last), "--fout", str(store), "--json"]
        words += ["--policy", "lru", "--policy", "gdsf", "--size", "20%", "--size", "50%"]
        words += ["--site", site] if site != "all" else []
        shown = json.loads(CliRunner().invoke(command, ["cache", "compare", *words]).stdout)
        # Both make the trace of the days with the same seed.
        wanted = {(one["capacity"], one["policy"]): one for one in shown}
        for row in rows:
            if row["site_name"] == site:
                one = wanted[row["capacity_bytes"], row["policy"]]
                assert (row["missed_bytes"], row["request_count"]) == (
                    one["missed_bytes"],
                    one["requests"],
                )
    for row in rows:
        assert row["least_missed_bytes"] <= row["missed_bytes"] <= row["requested_bytes"]
        assert row["policy"] != "lru" or row["missed_bytes"] == row["lru_missed_bytes"]
        assert row["period"] == WEEK.isoformat() and row["compulsory_count"] <= row["missed_count"]


def test_tasks_of_spark_make_the_same_table(store: Path, spark: Any) -> None:
    options: dict[str, Any] = {
        "sites": ("T2_A", "all"),
        "policies": ("lru", "sieve"),
        "shares": (0.3,),
    }
    assert made(store, spark, **options) == made(store, **options)


def test_an_unknown_site_or_policy_stores_nothing(store: Path) -> None:
    with pytest.raises(errors.InputMissing, match="no access at T2_C"):
        made(store, sites=("T2_C",))
    with pytest.raises(errors.UsageError, match="no policy"):
        made(store, policies=("luck",))
    assert not (store / "cache_comparison" / WEEK.isoformat() / "CURRENT").exists()
