"""``period_views``: the rows of named views, as `cmsspark period --view` has them,
stored and published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.usage import period_views
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.main import command
from tests.apps.usage.periods import WEEK
from tests.run.partial_days import partial, store_partials, user

OWN = """
mine:
  keys: [day, data_tier]
  measures: [distinct_users, nacc]
  filter: {site_name: "T2_*"}
people:
  keys: [dataset_name]
  measures: [nacc, distinct_users]
"""
VIEWS = ("mine", "people", "jobs")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "cmsspark.yaml").write_text(
        f"store: {tmp_path}/store\nstate_dir: {tmp_path}/state\nviews: own.yaml\n"
    )
    for day in WEEK.days:
        rows = [
            partial(day, user=user(day.day % 3), nacc=day.day),
            partial(day, user=None, site_name="T1_DE_KIT", dataset_name="/Z/x/USER"),
            partial(day, stream="condor", nacc=1_000, user=user(7), cpu_time=3.5, wc_time=4.0),
        ]
        store_partials(tmp_path / "store", day, rows)
    return tmp_path


def stored(*words: str) -> list[dict[str, Any]]:
    arguments = ["--week", str(WEEK), *words]
    CliRunner().invoke(
        period_views.command, arguments, catch_exceptions=False, standalone_mode=False
    )
    found = CliRunner().invoke(
        command, ["show", "period_views", "--path", "--week", str(WEEK)], catch_exceptions=False
    )
    return list(pq.read_table(found.stdout.strip().removeprefix("file://")).to_pylist())


def of_view(name: str) -> list[dict[str, Any]]:
    found = CliRunner().invoke(
        command, ["period", "--view", name, "--week", str(WEEK), "--json"], catch_exceptions=False
    )
    return list(json.loads(found.stdout)["rows"])


def test_the_stored_rows_are_those_of_the_views() -> None:
    rows = stored(*(word for name in VIEWS for word in ("--view", name)))
    assert list(rows[0]) == stored_table("period_views").names
    assert {row["view"] for row in rows} == set(VIEWS)
    for name in VIEWS:
        wanted = [
            {"access_day" if key == "day" else key: row[key] for key in row}
            for row in of_view(name)
        ]
        own = [row for row in rows if row["view"] == name]
        assert [{key: row[key] for key in wanted[0]} for row in own] == wanted
        others = (
            set(own[0]) - set(wanted[0]) - {"view", "period", "first_day", "last_day", "timestamp"}
        )
        assert all(row[key] is None for row in own for key in others)
    # Jobs are in the view that asks for them only.
    assert {row["nacc"] for row in rows if row["view"] == "jobs"} == {7_000}
    assert sum(row["nacc"] for row in rows if row["view"] == "people") == sum(
        day.day + 1 for day in WEEK.days
    )


def test_without_names_all_views_are_stored_and_the_manifest_says_what_they_count() -> None:
    rows = stored()
    found = CliRunner().invoke(
        command,
        ["show", "period_views", "--manifest", "--week", str(WEEK)],
        catch_exceptions=False,
    )
    views = json.loads(found.stdout)["views"]
    assert {"mine", "people", "jobs", "datasets"} <= set(views) and {
        row["view"] for row in rows
    } <= set(views)
    assert views["mine"]["keys"] == ["day", "data_tier"] and views["mine"]["filter"][
        "site_name"
    ] == ["T2_*"]


def test_each_row_is_a_document_and_a_second_run_sends_nothing(home: Path) -> None:
    settings = home / "cmsspark.yaml"
    settings.write_text(
        f"{settings.read_text()}publishing: {{user_datasets: false, min_distinct_users: 3}}\n"
    )
    rows = stored("--view", "mine", "--view", "people")
    words = ["publish", "--job", "period_views", "--week", str(WEEK), "--spool", "documents"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    files = sorted(Path("documents").rglob("*.jsonl*"))
    documents = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    documents = [
        document.get("data", document)
        for document in documents
        if "view" in document.get("data", document)
    ]
    published = [
        row
        for row in rows
        if row["data_tier"] != "USER" and not (row["dataset_name"] or "").endswith("/USER")
    ]
    assert len(documents) == len(published) and 0 < len(published) < len(rows)
    ids = {document["metadata"]["_id"] for document in documents}
    assert len(ids) == len(documents), "the keys tell all rows apart"
    of_mine = [document for document in documents if document["view"] == "mine"]
    assert sorted(document["access_day"] for document in of_mine) == [
        day.isoformat() for day in WEEK.days
    ]
    # One person a day is fewer than three.
    assert all("distinct_users" not in document for document in of_mine)
    again = CliRunner().invoke(command, words, catch_exceptions=False)
    assert "nothing has changed" in again.output


def test_a_view_that_there_is_not_and_days_that_are_missing_are_named() -> None:
    with pytest.raises(UsageError, match="no view 'minne'"):
        stored("--view", "minne")
    with pytest.raises(InputMissing, match="2026-W40"):
        CliRunner().invoke(
            period_views.command,
            ["--week", "2026-W40"],
            catch_exceptions=False,
            standalone_mode=False,
        )
