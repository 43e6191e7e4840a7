"""A made-up past: the same rows each time, laid out as the daily job leaves its days,
good for every command.
"""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import periods as bench
from bench.meter import Cost
from cmsspark.apps.demo.history_2015 import History
from cmsspark.apps.demo.narration import report, store_day, store_history, store_past
from cmsspark.apps.usage.period import KEYS
from cmsspark.base.schemas import stored_table
from cmsspark.main import command
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.store.query.database import Database
from tests.run.partial_days import counted

KEY = Pseudonyms(b"x" * 32)
HISTORY = History(KEY.pseudonym, rows=300, datasets=50, people=8)
DAY = date(2026, 1, 5)
MEASURES = ("nacc", "distinct_users", "remote_nacc", "read_bytes", "cpu_time", "wc_time")


def test_a_day_is_the_same_each_time_and_each_key_stands_once() -> None:
    schema = stored_table("partials")
    rows = HISTORY.partials(DAY, schema)
    assert rows.equals(
        History(KEY.pseudonym, rows=300, datasets=50, people=8).partials(DAY, schema)
    )
    assert not rows.equals(HISTORY.partials(DAY + timedelta(days=1), schema))
    made = rows.to_pylist()
    assert len({tuple(row[key] for key in (*KEYS, "user")) for row in made}) == len(made) == 300
    assert any(row["user"] is None for row in made)
    assert all((row["remote_nacc"] is None) == (row["stream"] == "eos") for row in made)
    assert all((row["cpu_time"] is None) == (row["stream"] != "condor") for row in made)
    assert all(row["read_bytes"] is not None for row in made if row["stream"] != "condor")


def test_jobs_of_a_made_up_day_are_of_the_stream_that_serves_it() -> None:
    schema = stored_table("partials")
    before, after = (
        HISTORY.partials(day, schema) for day in (date(2019, 12, 31), date(2020, 1, 1))
    )
    assert set(before["stream"].to_pylist()) == {"aaa", "eos", "cmssw", "crab"}
    assert set(after["stream"].to_pylist()) == {"aaa", "eos", "cmssw", "condor"}
    crab = [row for row in before.to_pylist() if row["stream"] == "crab"]
    condor = [row for row in after.to_pylist() if row["stream"] == "condor"]
    assert all(row["read_bytes"] is None and row["cpu_time"] is not None for row in crab)
    assert {row["app"] for row in condor} <= {"crab", "wmagent"}
    assert {row["read_bytes"] is None for row in condor} == {True, False}


def test_days_around_a_counted_day_have_the_jobs_of_their_own_epoch(tmp_path: Path) -> None:
    day = date(2020, 1, 3)
    store = str(tmp_path)
    store_day(HISTORY, store, KEY.key_id, day)
    assert store_past(store, day, 7, 1, KEY)[0] == 7
    with Database(store) as database:
        seen = database.query(
            "SELECT day, stream, count(job_read_bytes) > 0 FROM partials WHERE cpu_time IS NOT NULL "
            "GROUP BY ALL ORDER BY 1"
        ).rows
    assert [(row[0], row[1]) for row in seen] == [
        (day - timedelta(days=back), "condor" if back < 3 else "crab") for back in range(7, -1, -1)
    ]
    assert all(has_bytes == (stream == "condor") for _, stream, has_bytes in seen)
    first = json.loads(manifest_of(tmp_path, date(2019, 12, 30)))
    assert first["streams"][-1] == "crab" and first["epochs"]["jobs"] == "crab"


def manifest_of(store: Path, day: date) -> str:
    (path,) = store.glob(f"data_aggregation/{day}/runs/*/manifest.json")
    return path.read_text()


def test_its_report_is_that_of_a_plain_count() -> None:
    partials = HISTORY.partials(DAY, stored_table("partials"))
    wanted = counted(partials.to_pylist(), KEYS, MEASURES)
    rows = report(partials, DAY).to_pylist()
    assert {
        tuple(row[key] for key in KEYS): {name: row[name] for name in MEASURES} for row in rows
    } == wanted
    assert {row["timestamp"] for row in rows} == {1_767_571_200_000}


def test_every_command_takes_it_for_counted_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    chosen = [DAY + timedelta(days=number) for number in range(7)]
    assert store_history(HISTORY, "store", chosen[:3], KEY.key_id) == 3
    assert store_history(HISTORY, "store", chosen, KEY.key_id) == 4
    for words in (
        ("period", "--week", "2026-W02"),
        ("period", "--view", "sites", "--week", "2026-W02"),
        ("diff", "20260105", "20260106"),
        ("ask", "reads", "T2_*", "--weeks", "1"),
        ("show", "partials", "--path", "--date", "2026-01-07"),
    ):
        assert (
            CliRunner()
            .invoke(command, [*words, "--fout", "store"], catch_exceptions=False)
            .exit_code
            == 0
        )
    told = CliRunner().invoke(
        command, ["status", "--days", "7", "--to", "20260111", "--json", "--fout", "store"]
    )
    assert {day: jobs["data_aggregation"] for day, jobs in json.loads(told.stdout).items()} == {
        str(day): "done" for day in chosen
    }


def test_the_bench_prints_medians_and_the_ratio_to_raw_logs(tmp_path: Path) -> None:
    costs = {"month": [Cost(1.0, cpu, 10**9, 0.5, 0) for cpu in (4.0, 2.0, 9.0)]}
    text = bench.table_text(costs, 5.0, "head")
    assert "| month | 1.00 | 4.00 | 1.00 | 0.5 |" in text
    assert "20,150 CPU s, at 5.00 CPU s a million. From partials: 4.0 CPU s, 1/5,038 of it" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    bench.write(page, "new")
    assert page.read_text() == f"before\n{bench.BEGIN}\n\nnew\n\n{bench.END}\nafter\n"
