"""The job popularity_forecast, its documents, and what ``cmsspark ask`` answers from it."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.popularity import jobs
from cmsspark.apps.popularity.scores import BASELINES
from cmsspark.apps.popularity.training import Label
from cmsspark.base import errors
from cmsspark.base.periods import start_ms
from cmsspark.base.resources import read_text
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.publish.document_schemas import document_schema
from cmsspark.publish.documents import DocumentSpec, document
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import JOBS
from cmsspark.store.stored_columns import newest, table_rows
from cmsspark.submit.job_help import load_command
from tests.run.partial_days import partial, store_partials, store_table

FIRST = date(2026, 1, 5)
DAYS = 56
MONDAY = FIRST + timedelta(days=DAYS)
HOT, COLD, WARM = "/Hot/Run1-v1/AOD", "/Cold/Run1-v1/AOD", "/Warm/Run1-v1/MINIAOD"
TB = 10**12


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return fill(tmp_path)


def fill(tmp_path: Path) -> Path:
    """Eight weeks of stored days, and settings that name the store."""
    generator = np.random.default_rng(5)
    for number in range(DAYS):
        day = FIRST + timedelta(days=number)
        rows = [partial(day, dataset_name=HOT, site_name="T2_DE_B", nacc=20, read_bytes=TB)]
        rows += [partial(day, dataset_name=WARM, nacc=int(generator.integers(1, 5)))]
        rows += [
            partial(
                day, dataset_name=f"/P{i}/Run1-v{i}/AOD", nacc=int(generator.poisson(i / 6)) + 1
            )
            for i in range(20)
        ]
        if number == 3:
            rows.append(partial(day, dataset_name=COLD))
        store_partials(tmp_path, day, rows)
    (tmp_path / "cmsspark.yaml").write_text(f"store: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    return tmp_path


def make(store: Path, day: date = MONDAY, **options: Any) -> None:
    settings = load_settings(str(store / "cmsspark.yaml"))
    jobs.run(
        "popularity_forecast",
        day,
        str(store),
        settings,
        log=lambda text: None,
        model="average",
        **options,
    )


def rows_of(store: Path, table: str) -> list[dict[str, Any]]:
    _, current = newest(LocalFiles(), str(store), table)
    rows: list[dict[str, Any]] = table_rows(
        LocalFiles(), current, table, stored_table(table).names
    ).to_pylist()
    return rows


def ask(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["ask", *arguments, "--fout", str(store)])


def test_a_forecast_ranks_all_datasets_and_judges_the_last_weeks(store: Path) -> None:
    make(store, top=5, weeks=2)
    predictions = rows_of(store, "popularity_predictions")
    assert [row["rank"] for row in predictions] == list(range(1, 24))
    by_name = {row["dataset_name"]: row for row in predictions}
    assert by_name[HOT]["probability"] > 0.5 > by_name[COLD]["probability"]
    assert by_name[HOT]["last_week_nacc"] == 140 and by_name[HOT]["stratum"] == "active"
    assert by_name[COLD]["stratum"] == "dormant" and by_name[WARM]["data_tier"] == "MINIAOD"
    assert {row["day"] for row in predictions} == {MONDAY} and {
        row["timestamp"] for row in predictions
    } == {start_ms(MONDAY)}
    assert rows_of(store, "popularity_forecast") == predictions[:5]
    judged = rows_of(store, "popularity_quality")
    assert {row["first_day"] for row in judged} == {
        MONDAY - timedelta(days=7),
        MONDAY - timedelta(days=14),
    }
    whole = [row for row in judged if row["stratum"] == "all"]
    assert {row["model"] for row in whole} == {"average", *BASELINES} and len(whole) == 8
    assert all(row["dataset_count"] == 23 and 0 <= row["brier"] <= 1 for row in whole)
    parts = [row for row in judged if row["stratum"] != "all" and row["model"] == "average"]
    assert sum(row["dataset_count"] for row in parts) == 2 * 23


def test_a_forecast_does_not_know_the_day_itself_or_later_ones(store: Path) -> None:
    day = MONDAY - timedelta(days=7)
    make(store, day)
    before = rows_of(store, "popularity_predictions")
    for number in range(7):
        later = day + timedelta(days=number)
        store_partials(store, later, [partial(later, dataset_name=COLD, nacc=10**6)], run="r2")
    make(store, day)
    assert rows_of(store, "popularity_predictions") == before


def test_a_forecast_of_another_label_says_what_popular_means(store: Path) -> None:
    label = Label(30, users=3, weeks=2)
    make(store, label=label, weeks=2)
    rows = {row["dataset_name"]: row for row in rows_of(store, "popularity_predictions")}
    assert {row["label"] for row in rows.values()} == {
        "more than 30 accesses and more than 3 users in 2 weeks"
    }
    assert {row["threshold"] for row in rows.values()} == {30} and rows[HOT]["probability"] > 0.5
    # A week is judged when its two weeks are over.
    assert max(
        row["first_day"] for row in rows_of(store, "popularity_quality")
    ) == MONDAY - timedelta(days=14)
    shown = ask(store, "will-be-popular").stdout
    assert (
        "the 2 weeks from 2026-03-02 on" in shown
        and "the forecast of the 2 weeks from 2026-02-16 on" in shown
    )
    assert (
        "are likely to have more than 30 accesses and more than 3 users in 2 weeks"
        in shown.replace("\n", " ")
    )
    told = json.loads(ask(store, "will-be-popular", "--json").stdout)
    assert (told["label"], told["weeks"]) == (label.describe(), 2)


def test_a_forecast_by_bytes_has_no_threshold_and_needs_bytes(store: Path) -> None:
    words = [
        "--date",
        str(MONDAY),
        "--fout",
        str(store),
        "--settings",
        str(store / "cmsspark.yaml"),
        "--model",
        "average",
    ]
    done = CliRunner().invoke(
        load_command(JOBS["popularity_forecast"]), [*words, "--top-bytes", "5", "--judged", "1"]
    )
    assert done.exit_code == 0, done
    (row,) = {(row["threshold"], row["label"]) for row in rows_of(store, "popularity_forecast")}
    assert row == (None, "among the 5 datasets with the most bytes read in 1 week")
    assert (
        "likely to be among the 5 datasets with the most bytes"
        in ask(store, "will-be-popular").stdout
    )
    both = CliRunner().invoke(
        load_command(JOBS["popularity_forecast"]), [*words, "--top-bytes", "5", "--users", "1"]
    )
    assert (
        isinstance(both.exception, errors.UsageError)
        and "--top-bytes excludes --users" in both.exception.text()
    )
    for number in range(DAYS):
        day = FIRST + timedelta(days=number)
        store_partials(
            store, day, [partial(day, dataset_name=HOT, nacc=20, read_bytes=None)], run="r2"
        )
    with pytest.raises(errors.DataError, match="the series has no bytes"):
        make(store, label=Label(top_bytes=5))
    assert len(rows_of(store, "popularity_forecast")) == 23, "the last result stays"


def test_a_forecast_of_an_older_version_is_of_one_week(store: Path) -> None:
    make(store)
    (manifest,) = (store / "popularity_forecast" / MONDAY.isoformat() / "runs").glob(
        "*/manifest.json"
    )
    document = json.loads(manifest.read_text())
    document["forecast"] = {
        "model": "average",
        "threshold": 10.0,
        "weeks": 4,
        "top": 2000,
        "seed": 0,
    }
    for entry in document["tables"].values():
        del entry["sha256"]
    manifest.write_text(json.dumps(document))
    for part in manifest.parent.glob("popularity_predictions/*.parquet"):
        pq.write_table(pq.read_table(part).drop_columns(["label", "reasons", "nacc_p10"]), part)
    told = json.loads(ask(store, "will-be-popular", "--json").stdout)
    assert (told["label"], told["weeks"]) == ("more than 10 accesses in 1 week", 1)


def test_documents_are_valid_and_their_number_is_bounded(store: Path) -> None:
    make(store, top=7)
    for table in ("popularity_forecast", "popularity_quality"):
        spec = DocumentSpec(stored_table(table), MONDAY, "cms-spark", table)
        made = [document(spec, row) for row in rows_of(store, table)]
        schema = json.loads(read_text(f"schemas/documents/{table}.json"))
        assert schema == document_schema(table)
        for one in made:
            jsonschema.validate(one, schema)
        assert len({one["metadata"]["_id"] for one in made}) == len(made) > 0
    assert len(rows_of(store, "popularity_forecast")) == 7
    with pytest.raises(errors.UsageError, match="never published"):
        document(
            DocumentSpec(stored_table("popularity_predictions"), MONDAY, "cms-spark", "x"), {}
        )


def test_the_day_before_must_be_stored(store: Path) -> None:
    with pytest.raises(errors.InputMissing, match="is not stored") as caught:
        make(store, MONDAY + timedelta(days=1))
    assert f"cmsspark daily --date {MONDAY}" in caught.value.text()
    with pytest.raises(errors.InputMissing):
        make(store, FIRST)


def test_ask_will_be_popular_says_how_good_the_last_forecast_was(store: Path) -> None:
    make(store)
    shown = ask(store, "will-be-popular").stdout
    assert "week from 2026-03-02 on" in shown and HOT in shown
    assert "forecast of the week from 2026-02-23 on had an average precision of" in shown
    told = json.loads(ask(store, "will-be-popular", "/Hot/*", "--json").stdout)
    assert [row["dataset_name"] for row in told["datasets"]] == [HOT] and told["likely"] == 1
    assert (
        told["last_week"]["average"]["first_day"] == "2026-02-23"
        and "persistence" in told["last_week"]
    )
    assert isinstance(ask(store, "will-be-popular", "/Nobody/*").exception, errors.InputMissing)
    store_partials(store, MONDAY, [partial(MONDAY)])
    assert (
        "run_spark popularity_forecast --date 2026-03-03" in ask(store, "will-be-popular").stderr
    )


def test_ask_replicate_plans_by_the_stored_forecast(store: Path) -> None:
    missing = ask(store, "replicate").exception
    assert (
        isinstance(missing, errors.InputMissing)
        and f"run_spark popularity_forecast --date {MONDAY}" in missing.text()
    )
    make(store)
    day = MONDAY - timedelta(days=2)
    lying = [
        {
            "day": day,
            "dataset_name": name,
            "site_name": site,
            "kind": "disk",
            "present_bytes": TB,
            "dataset_bytes": TB,
            "present_file_count": 1,
            "present_block_count": 1,
            "is_complete": True,
            "timestamp": 1,
        }
        for name, site in ((HOT, "T1_US_A"), (COLD, "T1_US_A"), (COLD, "T2_DE_B"))
    ]
    store_table(store, "dbs_phedex", "dbs_phedex", day, lying)
    told = json.loads(ask(store, "replicate", "--json").stdout)
    assert [(row["dataset_name"], row["site_name"]) for row in told["rows"]] == [(HOT, "T2_DE_B")]
    assert told["rows"][0]["expected_nacc"] > 100 and "average" in told["last_week"]
    assert json.loads(ask(store, "replicate", "--site", "T1_*", "--json").stdout)["rows"] == []
    assert "average precision" in ask(store, "replicate").stdout


def test_ask_could_go_leaves_out_what_will_be_popular(store: Path) -> None:
    make(store)
    day = MONDAY - timedelta(days=1)
    columns = {
        "day": day,
        "data_tier": "AOD",
        "site_count": 1,
        "sites": "T1_US_A",
        "disk_bytes": TB,
        "tape_bytes": 0,
        "state": "unread",
        "is_candidate": True,
        "timestamp": 1,
    }
    used = [{**columns, "dataset_name": name} for name in (HOT, COLD)]
    store_table(store, "dataset_last_access", "dataset_last_access", day, used)
    lying = [
        {
            "day": day,
            "dataset_name": name,
            "site_name": "T1_US_A",
            "kind": "disk",
            "present_bytes": TB,
            "present_file_count": 1,
            "present_block_count": 1,
            "is_complete": True,
            "timestamp": 1,
        }
        for name in (HOT, COLD)
    ]
    store_table(store, "dbs_phedex", "dbs_phedex", day, lying)
    told = json.loads(ask(store, "deletable", "T1_US_A", "--json").stdout)
    assert [row["dataset_name"] for row in told["rows"]] == [COLD]
    assert told["forecast"]["first_day"] == "2026-03-02"
    assert "1 candidates are left out" in ask(store, "deletable", "T1_US_A").stdout


def test_a_store_that_is_too_young_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cmsspark.yaml").write_text(f"store: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    for number in range(10):
        day = FIRST + timedelta(days=number)
        store_partials(tmp_path, day, [partial(day)])
        if number == 2:
            early = ask(tmp_path, "will-be-popular").exception
            assert isinstance(early, errors.InputMissing)
            assert "forecast by persistence (from 2026-01-12 on)" in early.text()
            assert "run_spark popularity_forecast --date 2026-01-12 " in early.text()
    day = FIRST + timedelta(days=10)
    make(tmp_path, day)
    _, current = newest(LocalFiles(), str(tmp_path), "popularity_predictions")
    told = current.manifest.document
    assert told["forecast"]["model"] == "persistence"
    assert any("28 days by average (from" in text for text in told["warnings"])
    assert "28 days by average (from" in ask(tmp_path, "will-be-popular").stdout
