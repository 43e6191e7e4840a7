"""The pages of forecasts and caches: numbers of the stored tables, and what to run
where nothing is stored.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.apps.dashboard.conftest import Running, serving
from tests.run.partial_days import partial, store_partials, store_table

DAY = date(2026, 3, 2)
HOSTILE = "/<b>x/Run1-v1/AOD"


def prediction(
    rank: int, name: str, probability: float | None, stratum: str = "active"
) -> dict[str, Any]:
    return {
        "day": DAY,
        "rank": rank,
        "dataset_name": name,
        "data_tier": "AOD",
        "probability": probability,
        "raw_probability": probability,
        "stratum": stratum,
        "last_week_nacc": 10 * rank,
        "model": "blend",
        "threshold": 10.0,
        "timestamp": 1,
    }


def store_forecast(
    store: Path, job: str, quality: str, predictions: list[Any], rows: list[Any]
) -> None:
    """A stored forecast with both of its tables, of one run."""
    store_table(store, job, job, DAY, predictions)
    run = store / job / DAY.isoformat() / "runs" / "r1"
    manifest = json.loads((run / "manifest.json").read_text())
    store_table(store / "aside", "x", quality, DAY, rows)
    (store / "aside" / "x" / DAY.isoformat() / "runs" / "r1" / quality).rename(run / quality)
    shutil.rmtree(store / "aside")
    manifest["tables"][quality] = {"rows": len(rows)}
    (run / "manifest.json").write_text(json.dumps(manifest))


def judged(model: str, stratum: str, precision: float | None) -> dict[str, Any]:
    return {
        "day": DAY,
        "first_day": DAY - timedelta(days=7),
        "model": model,
        "stratum": stratum,
        "dataset_count": 3,
        "popular_share": 0.5,
        "average_precision": precision,
        "average_precision_low": precision,
        "average_precision_high": precision,
        "auc": None,
        "brier": 0.125,
        "tpr": 1.0,
        "tnr": 0.5,
        "timestamp": 1,
    }


def comparison(site: str, policy: str, share: float, missed: int) -> dict[str, Any]:
    return {
        "period": "2026-W09",
        "first_day": DAY - timedelta(days=7),
        "last_day": DAY - timedelta(days=1),
        "site_name": site,
        "policy": policy,
        "capacity_share": share,
        "capacity_bytes": int(share * 1000),
        "footprint_bytes": 1000,
        "request_count": 40,
        "missed_count": 20,
        "compulsory_count": 10,
        "bypassed_count": 0,
        "requested_bytes": 4000,
        "missed_bytes": missed,
        "lru_missed_bytes": 2000,
        "least_missed_bytes": 800,
        "timestamp": 1,
    }


def make_store(store: Path, *, is_empty: bool = False) -> Path:
    store_partials(store, DAY - timedelta(days=1), [partial(DAY - timedelta(days=1))])
    if is_empty:
        return store
    predictions = [prediction(1, HOSTILE, 0.875), prediction(2, "/B/x/AOD", 0.25, "dormant")]
    predictions.append(
        {**prediction(3, "/ZMM/Run2026A-v1/AOD", None), "label": "more than 10 accesses in 1 week"}
    )
    rows = [
        judged(model, stratum, 0.75)
        for model in ("blend", "persistence")
        for stratum in ("all", "dormant")
    ]
    store_forecast(store, "popularity_forecast", "popularity_quality", predictions, rows)
    caches = [
        comparison("all", "lru", 0.1, 2000),
        comparison("all", "learned", 0.1, 1500),
        comparison("T2_A", "lru", 0.1, 2000),
    ]
    store_table(store, "cache_comparison", "cache_comparison", DAY, caches)
    day = store / "cache_comparison" / DAY.isoformat()
    manifest = day / "runs" / "r1" / "manifest.json"
    told = {
        **json.loads(manifest.read_text()),
        "period": "2026-W09",
        "day": str(DAY - timedelta(days=7)),
    }
    manifest.write_text(json.dumps(told))
    day.rename(store / "cache_comparison" / "2026-W09")
    return store


def page(running: Running, path: str) -> str:
    with urllib.request.urlopen(f"{running.base}/{path}") as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("forecasts")
    with serving(make_store(folder / "store"), folder) as one:
        yield one


def test_the_forecast_page_shows_the_stored_numbers(running: Running) -> None:
    text = page(running, "forecasts")
    assert "87.5%" in text and "&lt;b&gt;x/Run1-v1/AOD" in text and HOSTILE not in text
    assert "of the first 3 datasets" in text and "75.0%" in text and "persistence" in text
    dormant = page(running, "forecasts?stratum=dormant")
    assert "/B/x/AOD" in dormant and "87.5%" not in dormant
    assert "of the 1 row of this selection among the first 3 datasets by rank" in dormant, (
        "its rank is 2"
    )
    new = page(running, "forecasts?stratum=new")
    assert "has no such dataset" in new and "or --judged was 0" in new
    with pytest.raises(urllib.error.HTTPError) as missing:
        page(running, "forecasts?day=2026-03-01")
    missing.value.close()


def test_a_datasets_page_says_what_popular_means_also_where_nothing_is_known(
    running: Running,
) -> None:
    text = page(running, "dataset?name=/ZMM/Run2026A-v1/AOD")
    assert (
        "unknown" in text
        and f"more than 10 accesses in 1 week from {DAY} on" in text
        and "rank 3" in text
    )


def test_the_page_of_caches_shows_the_stored_numbers(running: Running) -> None:
    text = page(running, "caches")
    assert "37.5%" in text and "-25.0%" in text and "20.0%" in text and "25.0%" in text
    assert (
        ">learned<" in text
        and ">learned<" not in page(running, "caches?site=T2_A").split("<main", 1)[1]
    )
    assert "left out or partial" not in text


def test_the_page_of_caches_says_that_days_of_the_period_are_left_out(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    manifest = store / "cache_comparison" / "2026-W09" / "runs" / "r1" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "partial": True}))
    with serving(store, tmp_path) as one:
        assert "Days of 2026-W09 are left out or partial" in page(one, "caches")


def test_without_results_the_pages_say_what_to_run(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", is_empty=True), tmp_path) as one:
        assert "run_spark popularity_forecast" in page(one, "forecasts")
        assert "run_spark cache_comparison" in page(one, "caches")
