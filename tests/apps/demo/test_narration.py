"""The days before the demo's day: coherent with it, with a quiet day, a late log and a
rerun; or a year.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from cmsspark.apps.demo.cli import DemoPaths, past_commands
from cmsspark.apps.demo.history_2015 import History, ResampledPast, activity
from cmsspark.apps.demo.narration import (
    JOB,
    STORY_DAYS,
    Story,
    aligned,
    next_lines,
    sql_line,
    store_day,
    store_history,
    store_past,
)
from cmsspark.base.schemas import stored_table
from cmsspark.main import command
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.store.query.database import Database

KEY = Pseudonyms(b"x" * 32)
DAY = date(2026, 1, 15)
COUNTED = History(KEY.pseudonym, rows=600, datasets=60, people=12)
SCHEMA = stored_table("partials")


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Story]:
    store = str(tmp_path_factory.mktemp("week"))
    store_day(COUNTED, store, KEY.key_id, DAY)
    made, story = store_past(store, DAY, 7, 1, KEY)
    assert made == 7
    return store, story


def test_days_before_have_the_datasets_and_people_of_the_counted_day(
    week: tuple[str, Story],
) -> None:
    with Database(week[0]) as database:
        assert database.days() == [DAY - timedelta(days=back) for back in range(7, -1, -1)]
        for column in ("dataset_name", "user", "site_name", "app"):
            sql = f'select count(*) from partials where "{column}" not in (select "{column}" from partials where day = ?)'
            assert database.query(sql, [DAY]).rows == [(0,)]
        sums = dict(
            database.query(
                "select day, sum(coalesce(accesses, jobs)) from partials group by day"
            ).rows
        )
        wrong = "accesses < 1 or jobs < 1 or remote_nacc > accesses or remote_nacc < 0 or read_bytes < 0 or cpu_time < 0"
        assert database.query(f"select count(*) from partials where {wrong}").rows == [(0,)]
    story = week[1]
    assert story.quiet and story.again and story.late
    others = [count for day, count in sums.items() if day not in (story.quiet, story.late)]
    assert sums[story.quiet] < 0.5 * min(others)


def test_the_late_log_came_and_another_one_is_still_late(week: tuple[str, Story]) -> None:
    store, story = week
    with Database(store) as database:
        partial = database.query(
            "select day, partial_reason from stored_days where is_partial and table_name = 'data_aggregation'"
        ).rows
    assert partial == [(story.late, "without cmssw")]
    first, second = sorted(
        path.name for path in Path(store, JOB, str(story.again), "runs").iterdir()
    )
    assert first == story.first_run
    before, after = (
        pl.read_parquet(f"{store}/{JOB}/{story.again}/runs/{run}/partials/part-*.parquet")
        for run in (first, second)
    )
    assert "cmssw" not in before["stream"].to_list()
    # What the late log added is all that differs.
    assert after.filter(pl.col("stream") != "cmssw").equals(before)
    assert after.height > before.height


def test_the_same_seed_makes_the_same_days(tmp_path: Path) -> None:
    rows = COUNTED.partials(DAY, SCHEMA).cast(SCHEMA.arrow())
    day = DAY - timedelta(days=3)
    one, again = (ResampledPast(rows, DAY, 5).partials(day, SCHEMA) for _ in range(2))
    assert one.equals(again)
    assert not one.equals(ResampledPast(rows, DAY, 6).partials(day, SCHEMA))


def run(line: str, store: str) -> Result:
    import shlex

    words = shlex.split(line.partition("  #")[0])
    assert words[0] == "cmsspark"
    return CliRunner().invoke(command, [*words[1:], "--fout", store], standalone_mode=False)


def test_what_to_try_next_has_something_to_show(
    week: tuple[str, Story], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, story = week
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    period = run(f"cmsspark period --from {DAY - timedelta(days=7)} --to {DAY}", store)
    assert period.exception is None
    lines = next_lines(DAY - timedelta(days=7), DAY, story)
    assert len(lines) == 7
    shown = {}
    for line in lines:
        if " ask unused " in line:
            continue  # needs the table of replicas, which the demo's job makes
        ended = run(line, store)
        assert ended.exception is None, line
        shown[line.split()[1]] = shown.get(line.split()[1], "") + ended.stdout
    assert "partial" in shown["status"] and "cmssw" in shown["diff"]
    assert (tmp_path / "days.html").stat().st_size > 20_000


@pytest.mark.parametrize("count", [8, STORY_DAYS + 1, 365])
def test_the_replicas_that_ask_unused_reads_are_made_for_a_past_of_any_length(
    count: int, tmp_path: Path
) -> None:
    first = DAY - timedelta(days=count - 1)
    offered = " ".join(next_lines(first, DAY, Story()))
    commands = past_commands(DemoPaths.below(tmp_path), first, DAY)
    assert "ask unused" in offered and any("dbs_phedex.py" in command for command in commands)
    stored = [command for command in commands if "period" in command and "--view" not in command]
    assert bool(stored) == (count <= STORY_DAYS)


def test_sql_is_offered_only_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    command = 'cmsspark sql "describe partials"'
    assert sql_line("describe partials") == (command, "any question, in SQL")
    monkeypatch.setattr("cmsspark.apps.demo.narration.SQL_PACKAGES", ("duckdb", "no_such_package"))
    typed, about = sql_line("describe partials")
    assert typed == "pip install 'cmsspark[sql]'" and command in about


def test_a_long_past_is_made_by_processes_and_ends_with_a_day_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmsspark.apps.demo.narration.PRODUCTION_ROWS", 200)
    store = str(tmp_path)
    store_day(COUNTED, store, KEY.key_id, DAY)
    seen: list[tuple[int, int]] = []
    made, story = store_past(
        store, DAY, STORY_DAYS, 1, KEY, lambda done, wanted: seen.append((done, wanted))
    )
    assert (made, story) == (STORY_DAYS, Story())
    assert seen[-1] == (STORY_DAYS, STORY_DAYS)
    with Database(store) as database:
        rows = database.query("select count(*) from partials group by day").rows
        assert set(rows) == {(200,)} and len(rows) == STORY_DAYS + 1
    assert len(list((tmp_path / JOB / str(DAY) / "runs").iterdir())) == 2


def test_processes_make_the_same_days_as_one(tmp_path: Path) -> None:
    history = History(KEY.pseudonym, rows=100, datasets=20, people=5)
    span = [DAY - timedelta(days=back) for back in range(8)]
    for name, processes in (("one", 1), ("two", 2)):
        assert (
            store_history(history, str(tmp_path / name), span, KEY.key_id, processes=processes)
            == 8
        )
    for day in span:
        one, two = (
            [
                path.read_bytes()
                for path in sorted(tmp_path.glob(f"{name}/{JOB}/{day}/runs/*/*/part-*"))
            ]
            for name in ("one", "two")
        )
        assert one == two and len(one) == 2


def test_a_year_has_weekends_pauses_and_growth() -> None:
    assert activity(date(2026, 1, 17)) < activity(date(2026, 1, 16))
    assert activity(date(2025, 8, 13)) < activity(date(2025, 7, 16))
    assert activity(date(2026, 6, 3)) > 1.2 * activity(date(2025, 6, 4))


def test_comments_of_what_to_try_next_stand_in_one_column() -> None:
    commented = aligned(
        [("cmsspark a", "one"), ("cmsspark longer", "two"), ("x" * 70, "behind a long command")]
    )
    assert [line.index("  # ") for line in commented] == [17, 17, 72]
