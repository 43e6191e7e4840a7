"""What goes wrong in ``cmsspark daily`` (R1, R2, R4): no day holds up another, and what
is left is finished later.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from cmsspark.apps.daily.cli import command
from cmsspark.apps.daily.planner import Planner
from cmsspark.apps.daily.run import most_serious, worked
from cmsspark.base import dates
from cmsspark.base.errors import NotReady
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store.lease import Lease
from cmsspark.store.own_jobs import Job
from tests.apps.daily.killed_daily import DAYS, JOB, LAST, NOW, Mornings

ELSEWHERE = {"host": "other.example.org", "pid": 7, "kernel": "another boot", "started": 1}


def test_a_day_that_fails_holds_up_no_other_and_is_tried_again(place: Mornings) -> None:
    place.codes["run", DAYS[2]] = 65
    outcomes = place.work()
    assert most_serious(outcome.code for outcome in outcomes) == 65
    assert [outcome.word for outcome in outcomes].count("published") == 9
    place.codes.clear()
    place.started.clear()
    place.work()
    assert place.runs() == [DAYS[2]]


def test_a_surprise_of_one_day_is_70_for_it_and_the_others_are_done(
    place: Mornings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What no code of ours expects: in looking at one day, and in starting the run of another.
    loop = place.log_folder(DAYS[1]) / "part-0"
    stale = Planner._stale
    place.store(DAYS[1])

    def surprise(self: Planner, job: Job, day: date, manifest: dict[str, Any]) -> str:
        if day == DAYS[1]:
            raise RuntimeError(f"Symlink loop from {loop}")
        return stale(self, job, day, manifest)

    monkeypatch.setattr(Planner, "_stale", surprise)
    daily = place.daily()
    started = daily.runner

    def runner(argv: list[str]) -> int:
        if dates.compact(DAYS[3]) in argv:
            raise RuntimeError("no such day")
        return started(argv)

    daily.runner = runner
    outcomes = worked(daily, DAYS[0], LAST)
    failed = {outcome.task.day: outcome.code for outcome in outcomes if outcome.word == "failed"}
    assert failed == {DAYS[1]: 70, DAYS[3]: 70}
    assert [outcome.word for outcome in outcomes].count("published") == 8
    assert most_serious(outcome.code for outcome in outcomes) == 70


def test_a_day_is_given_up_after_three_runs_of_the_same_inputs(place: Mornings) -> None:
    place.codes["run", LAST] = 65
    for _ in range(5):
        (outcome,) = place.work(first=LAST)
        assert (outcome.word, outcome.code) == ("failed", 65)
    assert place.runs() == [LAST] * 3
    assert "given up after 3 failures; to run it again: cmsspark daily" in outcome.next_step
    assert place.daily().state.record(LAST, "dbs_eos").is_given_up
    place.log(LAST, 1_001)
    place.work(first=LAST)
    assert place.runs() == [LAST] * 4


def test_force_runs_what_is_done_or_given_up(place: Mornings) -> None:
    place.codes["run", LAST] = 65
    for _ in range(3):
        place.work(first=DAYS[-2])
    place.codes.clear()
    place.started.clear()
    outcomes = worked(replace(place.daily(), force=True), DAYS[-2], LAST)
    assert place.runs() == [DAYS[-2], LAST]
    assert [outcome.task.reason for outcome in outcomes] == ["forced", "missing"]


def test_a_state_that_is_damaged_or_cannot_be_written_stops_no_day(place: Mornings) -> None:
    state = place.folder / "state"
    state.mkdir()
    (state / "daily.json").write_text("{")
    place.codes["run", DAYS[0]] = 65
    assert [outcome.word for outcome in place.work(last=DAYS[1])] == ["failed", "published"]
    assert len(list(state.glob("daily.json.damaged-*"))) == 1
    (state / "daily.json").unlink()
    (state / "daily.json").mkdir()
    assert [outcome.word for outcome in place.work(first=DAYS[2], last=DAYS[3])] == [
        "published"
    ] * 2
    assert any("the state of daily cannot be" in text for text in place.told)


@pytest.mark.parametrize("code", [2, 73, 78])
def test_what_would_end_all_days_alike_is_not_tried_on_all(place: Mornings, code: int) -> None:
    place.codes |= {("run", day): code for day in DAYS}
    outcomes = place.work()
    assert [outcome.word for outcome in outcomes] == ["failed"] * 2 + ["left"] * 8
    assert most_serious(outcome.code for outcome in outcomes) == code


@pytest.mark.parametrize("code", [2, 73, 78])
def test_a_fatal_code_of_one_day_stops_no_other(place: Mornings, code: int) -> None:
    place.codes["run", DAYS[0]] = code
    outcomes = place.work()
    assert [outcome.word for outcome in outcomes] == ["failed"] + ["published"] * 9
    assert most_serious(outcome.code for outcome in outcomes) == code


def test_documents_that_could_not_be_sent_are_sent_the_next_time(place: Mornings) -> None:
    place.codes["publish", LAST] = 75
    (outcome,) = place.work(first=LAST)
    assert (outcome.word, outcome.code) == ("unsent", 75)
    place.codes.clear()
    assert [one.task.reason for one in place.work(first=LAST)] == ["unpublished"]


def test_documents_that_no_destination_can_get_have_the_reason(place: Mornings) -> None:
    place.daily_settings = "publishing: {sink: stomp, amq: nowhere.json}\n"
    place.codes["publish", LAST] = 78
    (outcome,) = place.work(first=LAST)
    assert (outcome.word, outcome.code) == ("failed", 78)
    assert outcome.text.startswith("stored, not published: ") and "nowhere.json" in outcome.text


def test_a_wrong_key_of_publishing_ends_daily_before_a_day_is_counted(
    place: Mornings, tmp_path: Path
) -> None:
    settings = tmp_path / "wrong.yaml"
    settings.write_text(
        f"store: {place.fout}\nroot: {tmp_path}\nstate_dir: {tmp_path}/state\n"
        "publishing: {sink: file, tls: false}\n"
    )
    ended = CliRunner().invoke(command, ["--settings", str(settings)], standalone_mode=False)
    assert ended.return_value == 78
    assert "daily run could not start: there is no setting 'tls' under publishing" in ended.output


def test_an_input_that_is_gone_when_the_run_starts_is_75_for_daily(place: Mornings) -> None:
    place.codes["run", LAST] = 66
    (outcome,) = place.work(first=LAST)
    assert (outcome.word, outcome.code) == ("waiting", 75)


def test_two_at_once_one_works_and_the_other_says_who(place: Mornings) -> None:
    Lease(
        LocalFiles(),
        f"{place.fout}/.leases/daily",
        "the daily work",
        now=lambda: NOW * 2,
        process=ELSEWHERE,
    ).take()
    with pytest.raises(NotReady, match=r"process 7 on other\.example\.org"):
        place.work()
    assert place.started == []


def test_several_days_at_once_come_to_the_same(place: Mornings) -> None:
    outcomes = place.work(parallel=3)
    assert [outcome.task.day for outcome in outcomes] == sorted(place.runs()) == DAYS


def killed_at(folder: Path, step: int) -> bool:
    command = [sys.executable, "-m", "tests.apps.daily.killed_daily", str(folder), str(step)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8, 12, 15])
def test_killed_at_a_step_the_next_daily_finishes_what_is_left(place: Mornings, step: int) -> None:
    assert killed_at(place.folder, step)
    place.work(first=DAYS[-3])
    assert place.work(first=DAYS[-3]) == []
    for day in DAYS[-3:]:
        runs = Path(place.fout) / JOB / day.isoformat() / "runs"
        assert all((run / "manifest.json").exists() for run in runs.iterdir())
    # Three days of five steps each, stored from the third on: that is not run again.
    assert len(place.runs()) == 3 - (step + 2) // 5


def test_days_are_utc_and_years_end_right(place: Mornings) -> None:
    end = date(2024, 12, 30)
    tasks = place.daily().tasks(end, end + timedelta(days=3))
    assert [task.day.isoformat() for task in tasks] == [
        "2024-12-30",
        "2024-12-31",
        "2025-01-01",
        "2025-01-02",
    ]
