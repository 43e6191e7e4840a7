"""``cmsspark daily`` (R1, R2, R4, R6, R7, R8): exactly what is to be done is done,
oldest first, and told.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cmsspark.apps.daily.cli import command as daily_command
from cmsspark.apps.daily.notify import notify
from cmsspark.apps.daily.run import most_serious, worked
from cmsspark.base import dates
from cmsspark.base.errors import DataError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.publish.publication import configured_target
from cmsspark.run.run_context import note_published, running
from cmsspark.store.lease import hold
from cmsspark.store.run_history import FILE, Published
from tests.apps.daily.killed_daily import DAYS, JOB, LAST, NOW, Mornings
from tests.apps.daily.test_notify import mail_server
from tests.run.places import Place, write_streams

HOUR = 3_600


def test_ten_new_days_are_run_and_published_oldest_first(place: Mornings) -> None:
    outcomes = place.work()
    assert [outcome.word for outcome in outcomes] == ["published"] * 10
    assert place.runs() == place.sent() == DAYS
    assert most_serious(outcome.code for outcome in outcomes) == 0


def test_a_second_daily_finds_nothing_to_do(place: Mornings) -> None:
    place.work()
    place.started.clear()
    assert place.work() == []
    assert place.started == []


def test_of_ten_days_exactly_three_missing_and_one_stale_are_done_oldest_first(
    place: Mornings,
) -> None:
    missing, stale = [DAYS[1], DAYS[4], DAYS[8]], DAYS[6]
    for day in DAYS:
        if day not in missing:
            place.store(day)
            place.publish(day)
    place.log(stale, 1_001)
    outcomes = place.work()
    assert place.runs() == place.sent() == sorted([*missing, stale])
    assert {outcome.task.day: outcome.task.reason for outcome in outcomes} == {
        **dict.fromkeys(missing, "missing"),
        stale: "stale: the files of eos have changed",
    }


def test_a_day_that_is_stored_and_not_published_is_only_published(done: Mornings) -> None:
    done.store(DAYS[3])
    done.work()
    assert (done.runs(), done.sent()) == ([], [DAYS[3]])


def test_without_publishing_days_are_only_stored(place: Mornings) -> None:
    outcomes = place.work(publish=False)
    assert {outcome.word for outcome in outcomes} == {"done"}
    assert place.sent() == []
    assert place.work(publish=False) == []


def test_a_better_dump_makes_no_day_stale(done: Mornings) -> None:
    dbs = done.root / "project/awg/cms/dbs/PROD_GLOBAL"
    (dbs / "2026-02-01").rename(dbs / "2026-01-30")
    assert done.work() == []


def test_logs_that_were_deleted_make_no_day_stale(done: Mornings) -> None:
    folder = done.log_folder(DAYS[0])
    (folder / "part-0").unlink()
    folder.rmdir()
    assert done.work() == []


def test_the_day_before_that_arrives_or_changes_makes_a_day_stale_whose_jobs_it_would_double(
    done: Mornings,
) -> None:
    before, day = DAYS[4], DAYS[5]
    absent = {"day": before.isoformat(), "folder": None, "ids_from": None}
    done.store(day, earlier_jobs={"eos": absent})
    (task,) = done.daily(publish=False).tasks(DAYS[0], LAST)
    assert (task.day, task.reason) == (
        day,
        f"stale: eos of {before}, whose jobs may be counted twice, has arrived",
    )
    sums = {"file_count": 1, "bytes": 1_000, "newest_ms": int(NOW - 3_600) * 1000}
    read = {**absent, "folder": str(done.log_folder(before)), **sums, "ids_from": "logs"}
    done.store(day, earlier_jobs={"eos": read})
    assert done.daily(publish=False).tasks(day, day) == []
    done.log(before, 1_001)
    (task,) = done.daily(publish=False).tasks(day, day)
    assert (
        task.reason
        == f"stale: the files of eos of {before}, whose jobs are left out, have changed"
    )
    done.log(before, 1_001, at=NOW - 60)  # still being written
    assert done.daily(publish=False).tasks(day, day) == []


def test_a_schema_that_changed_makes_days_stale_and_they_stay_readable(done: Mornings) -> None:
    path = (
        Path(done.fout)
        / JOB
        / DAYS[2].isoformat()
        / "runs"
        / done.manifest(DAYS[2])["run"]
        / "manifest.json"
    )
    path.write_text(
        path.read_text().replace(done.manifest(DAYS[2])["tables"][JOB]["schema"], "another")
    )
    (outcome,) = done.work()
    assert outcome.task.reason == "stale: the schema of dbs_eos has changed"
    assert done.runs() == [DAYS[2]]


def test_a_damaged_result_is_made_again(done: Mornings) -> None:
    (Path(done.fout) / JOB / DAYS[5].isoformat() / "CURRENT").write_bytes(b"\0")
    done.work()
    assert done.runs() == [DAYS[5]]


def test_without_its_run_history_daily_publishes_again_what_the_publisher_then_finds_unchanged(
    done: Mornings,
) -> None:
    for path in (done.folder / "state").glob(f"{FILE}*"):
        path.unlink()
    done.work()
    assert (done.runs(), done.sent()) == ([], DAYS)


# Not ready
# ---------------------------------------------------------------------------------------------------------


def test_a_day_that_is_not_there_waits_with_75_and_holds_up_no_other(place: Mornings) -> None:
    folder = place.log_folder(LAST)
    folder.rename(folder.with_name("31.tmp"))
    outcomes = place.work()
    assert [outcome.word for outcome in outcomes] == ["published"] * 9 + ["waiting"]
    assert most_serious(outcome.code for outcome in outcomes) == 75
    assert outcomes[-1].task.readiness.retry_ms == int(NOW * 1000) + HOUR * 1000


def test_a_missing_log_is_named_once_with_the_days_that_are_there(place: Mornings) -> None:
    shutil.rmtree(place.log_folder(LAST))
    (task,) = place.daily().tasks(LAST, LAST)
    (reason,) = task.readiness.reasons
    assert reason.startswith(f"no eos log for {LAST} (days there: ") and str(DAYS[-2]) in reason
    place.daily_settings = "daily: {sources: {eos: partial}}\n"
    (task,) = place.daily().tasks(LAST, LAST)
    assert task.readiness.reasons == ("none of eos is there",)


def test_with_the_policy_tmp_an_open_day_is_read_and_done_again_when_it_is_final(
    place: Mornings,
) -> None:
    place.daily_settings = "daily: {sources: {eos: tmp}}\n"
    folder = place.log_folder(LAST)
    open_folder = folder.rename(folder.with_name("31.tmp"))
    place.work(first=LAST)
    assert place.manifest(LAST)["partial"] is True
    assert place.work(first=LAST) == []
    open_folder.rename(folder)
    (outcome,) = place.work(first=LAST)
    assert outcome.task.reason == "stale: eos is final now"
    assert place.manifest(LAST)["partial"] is False


def test_a_source_that_may_be_left_out_is_and_the_day_is_done_again_when_it_arrives(
    place: Mornings,
) -> None:
    place.daily_settings = "daily: {sources: {aaa: partial, cmssw: partial, condor: partial}}\n"
    daily = place.daily(jobs=(replace(place.daily().config.jobs[0], streams=("aaa", "eos")),))
    (task,) = daily.tasks(LAST, LAST)
    assert task.options == ("--allow-missing",)
    assert task.readiness.is_ready
    place.store(LAST)
    assert "aaa" not in daily.tasks(LAST, LAST)[0].reason
    aaa = place.root / "project/monitoring/archive/xrootd/enr/gled/2026/01/31"
    aaa.mkdir(parents=True)
    (aaa / "part-0").write_bytes(b"x")
    os.utime(aaa / "part-0", (NOW - HOUR, NOW - HOUR))
    assert daily.tasks(LAST, LAST)[0].reason == "stale: aaa has arrived"


def test_a_day_still_being_written_waits_until_it_is_quiet(place: Mornings) -> None:
    place.log(LAST, 1_000, at=NOW - 60)
    (outcome,) = place.work(first=LAST)
    assert (outcome.word, outcome.text) == (
        "waiting",
        "eos: the last file was written 1 minutes ago",
    )
    place.now += 600
    assert [one.word for one in place.work(first=LAST)] == ["published"]


def test_the_dump_after_the_day_is_waited_for_and_then_the_next_best_is_taken(
    place: Mornings,
) -> None:
    dbs = place.root / "project/awg/cms/dbs/PROD_GLOBAL"
    (dbs / "2026-02-01").rename(dbs / "2026-01-31")
    assert [one.word for one in place.work(first=LAST)] == ["waiting"]
    place.now += 48 * HOUR
    assert [one.word for one in place.work(first=LAST)] == ["published"]
    assert any("the dump of 2026-01-31 is taken" in text for text in place.told)


# What is told
# ------------------------------------------------------------------------------------------------------


def end(place: Mornings, outcomes: list[Any]) -> int:
    return notify(place.daily(), DAYS[0], LAST, outcomes)


def test_the_summary_is_one_line_with_counts_code_and_the_next_look(
    place: Mornings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = place.log_folder(LAST)
    folder.rename(folder.with_name("31.tmp"))
    assert end(place, place.work()) == 75
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert line.startswith(
        "2026-02-01 06:00 UTC: 2026-01-22 to 2026-01-31: 10 days: 9 published, 1 waiting in "
    )
    assert line.endswith(". Exit code 75. Next try after 2026-02-01 07:00 UTC\n")


def test_metrics_are_written_for_prometheus(place: Mornings) -> None:
    place.daily_settings = "daily: {metrics: cms.prom}\n"
    end(place, place.work())
    lines = (place.folder / "cms.prom").read_text().splitlines()
    assert 'cmsspark_daily_tasks{outcome="published"} 10.0' in lines
    assert "cmsspark_daily_exit_code 0.0" in lines


def test_targets_that_are_down_are_reported_and_change_nothing(
    place: Mornings, capsys: pytest.CaptureFixture[str]
) -> None:
    place.daily_settings = (
        "daily: {metrics: nowhere/cms.prom, mail: {to: [a@b], from: c@d, server: 127.0.0.1, port: 1},"
        " push: {url: 'http://127.0.0.1:1/metrics/job/cmsspark'}}\n"
    )
    place.codes["run", LAST] = 65
    assert end(place, place.work()) == 65
    line = capsys.readouterr().out
    assert "metrics cannot be written" in line
    assert "mail cannot be sent: 127.0.0.1:1" in line
    assert "metrics cannot be pushed: http://127.0.0.1:1/metrics/job/cmsspark" in line


def test_a_run_that_failed_is_reported_with_its_reason(place: Mornings) -> None:
    def fails(argv: list[str]) -> int:
        with (
            pytest.raises(DataError),
            running(place.settings(), place.fout, JOB, LAST, place.told.append),
        ):
            raise DataError("the log is bad", where="somewhere")
        return 65

    (outcome,) = worked(replace(place.daily(), runner=fails), LAST, LAST)
    assert (outcome.text, outcome.where) == ("the log is bad", "somewhere")
    assert outcome.state.text() == f"failed (65): the log is bad: somewhere (run {outcome.run})"
    # A run that ended before this one began is no reason.
    (outcome,) = worked(replace(place.daily(), runner=lambda argv: 65), LAST, LAST)
    assert outcome.text == "run_spark dbs_eos ended with 65"


# The command
# -------------------------------------------------------------------------------------------------------


def daily(settings: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from cmsspark.main import main; main()",
        "daily",
        "--settings",
        str(settings),
    ]
    environment = {
        **os.environ,
        "HOME": str(settings.parent),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def test_a_dry_run_says_what_would_be_done_and_does_nothing(place: Mornings) -> None:
    place.settings()
    place.store(DAYS[0])
    span = (
        "--from",
        DAYS[0].isoformat(),
        "--to",
        DAYS[1].isoformat(),
        "--job",
        JOB,
        "--fout",
        place.fout,
    )
    done = daily(place.folder / "cmsspark.yaml", *span, "--publish", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert [line.split("  ", 2)[2] for line in done.stdout.splitlines()] == [
        "unpublished  would be published",
        "missing  would be run",
    ]
    assert not (Path(place.fout) / JOB / DAYS[1].isoformat()).exists()


def test_a_second_daily_ends_with_75_and_names_the_first(place: Mornings) -> None:
    place.settings()
    words = (
        place.folder / "cmsspark.yaml",
        "--from",
        LAST.isoformat(),
        "--to",
        LAST.isoformat(),
        "--fout",
        place.fout,
    )
    with hold(LocalFiles(), f"{place.fout}/.leases/daily", "the daily work"):
        second = daily(*words)
    assert second.returncode == 75
    assert f"process {os.getpid()} on " in second.stderr
    assert second.stdout.partition(" UTC: ")[2].startswith("daily run could not start: ")
    assert second.stdout.endswith(". Exit code 75\n")
    assert second.stdout.count("\n") == 1
    assert not (Path(place.fout) / JOB).exists()


def test_a_daily_that_is_interrupted_does_not_say_that_it_could_not_start(
    place: Mornings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.settings()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cmsspark.apps.daily.run.worked", interrupted)
    settings = str(place.folder / "cmsspark.yaml")
    words = ["--from", str(LAST), "--to", str(LAST), "--fout", place.fout, "--settings", settings]
    assert daily_command.main(words, standalone_mode=False) == 75
    assert capsys.readouterr().out.endswith(" UTC: daily run was interrupted. Exit code 75\n")


@pytest.mark.parametrize("wrong", ["store: {}", "daily: {metrics: cms.prom, jobs: [nothing]}"])
def test_a_daily_that_cannot_begin_prints_its_line(place: Mornings, wrong: str) -> None:
    (place.folder / "cmsspark.yaml").write_text(wrong + "\n")
    done = daily(place.folder / "cmsspark.yaml", "--fout", place.fout)
    assert done.returncode == 78
    assert done.stdout.partition(" UTC: ")[2].startswith("daily run could not start: ")
    assert done.stdout.endswith(". Exit code 78\n")
    assert "Traceback" not in done.stderr


def test_a_daily_that_cannot_begin_mails_once_and_writes_its_metrics(place: Mornings) -> None:
    with mail_server() as (port, came):
        mail = f"mail: {{to: [a@b], from: c@d, server: 127.0.0.1, port: {port}}}"
        wrong = f"state_dir: state\ndaily: {{metrics: cms.prom, jobs: [nothing], {mail}}}\n"
        (place.folder / "cmsspark.yaml").write_text(wrong)
        for _ in range(2):
            assert daily(place.folder / "cmsspark.yaml", "--fout", place.fout).returncode == 78
    (mailed,) = came
    assert b"daily could not start (78: " in mailed
    assert b"nothing" in mailed
    text = (place.folder / "cms.prom").read_text()
    assert "cmsspark_daily_exit_code 78.0" in text
    assert "cmsspark_daily_heartbeat_timestamp_seconds" in text


def test_a_day_is_acknowledged_or_skipped_by_name_and_status_shows_why(place: Mornings) -> None:
    place.settings()
    path = place.folder / "cmsspark.yaml"
    place.codes["run", LAST] = 65
    place.work(first=LAST)
    words = ("--fout", place.fout, "--reason")
    assert daily(path, "acknowledge", "20260131", JOB, *words, "the log is lost").returncode == 0
    assert place.daily().state.record(LAST, JOB).is_acknowledged
    assert daily(path, "acknowledge", "20260130", JOB, *words, "none").returncode == 2
    assert daily(path, "skip", "20260129", JOB, *words, "the site was closed").returncode == 0
    place.started.clear()
    assert [outcome.word for outcome in place.work(first=DAYS[-3])] == [
        "skipped",
        "published",
        "acknowledged",
    ]
    assert DAYS[-3] not in place.runs()
    command = [
        sys.executable,
        "-c",
        "from cmsspark.main import main; main()",
        "status",
        "--settings",
        str(path),
    ]
    status = subprocess.run(
        [*command, "--fout", place.fout, "--to", "20260131"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"2026-01-29 {JOB}: skipped since 2" in status
    assert re.search(r" by \S+: the site was closed\n", status)
    assert f"2026-01-31 {JOB}: acknowledged: the log is lost (" in status
    report = [
        *command[:3],
        "report",
        JOB,
        "--date",
        "20260129",
        "--settings",
        str(path),
        "--fout",
        place.fout,
    ]
    reported = subprocess.run(report, capture_output=True, text=True, check=False)
    assert reported.returncode == 66
    assert ": the site was closed" in reported.stderr
    assert daily(path, "skip", "20260129", JOB, *words, "open again", "--undo").returncode == 0
    assert [outcome.word for outcome in place.work(first=DAYS[-3], last=DAYS[-3])] == ["published"]


def test_days_in_the_wrong_order_end_in_2(place: Mornings) -> None:
    place.settings()
    done = daily(
        place.folder / "cmsspark.yaml",
        "--from",
        "20260102",
        "--to",
        "20260101",
        "--fout",
        place.fout,
    )
    assert done.returncode == 2


def test_after_a_change_of_destination_daily_sends_what_the_new_one_lacks(
    place: Mornings,
) -> None:
    def publish(day: date, outbox: str) -> None:
        run = place.manifest(day)["run"]
        where = str(place.folder / "other" / JOB / day.isoformat())
        note_published(
            place.folder / "state",
            Published(JOB, JOB, day, run, where, dates.now_ms(), 2, 0, 0, outbox),
        )

    for day in DAYS:
        place.store(day)
        publish(day, "file-of-another-folder")
    tasks = place.daily().tasks(DAYS[0], LAST)
    assert {task.day: task.reason for task in tasks} == dict.fromkeys(DAYS, "unpublished")
    # What the configured one has is not sent again.
    (place.folder / "state/published").mkdir()
    (place.folder / "state/published/.spool").write_text("mark\n")
    outbox = configured_target(place.settings()).outbox
    assert outbox is not None
    for day in DAYS[:4]:
        publish(day, outbox)
    assert [task.day for task in place.daily().tasks(DAYS[0], LAST)] == DAYS[4:]


def test_a_destination_that_cannot_be_used_is_an_error_of_publishing_not_of_counting(
    place: Mornings,
) -> None:
    place.daily_settings = "publishing: {sink: stomp, amq: nowhere.json}\n"
    place.store(DAYS[0])
    first, second = place.daily().tasks(DAYS[0], DAYS[1])
    assert (first.reason, second.reason) == ("cannot be checked", "missing")
    assert first.error is not None and first.error.exit_code == 78


def test_a_real_day_is_run_by_run_spark_published_and_then_left_alone(tmp_path: Path) -> None:
    real = Place(tmp_path)
    write_streams(real.tree)
    with real.settings.open("a") as stream:
        stream.write(
            f"root: {tmp_path}/root\nstore: {tmp_path}/store\npublishing: {{sink: file}}\n"
        )
        stream.write("daily: {jobs: [dbs_eos], quiet_minutes: 0}\n")
    span = ("--from", "20190614", "--to", "20190615")
    first = daily(real.settings, *span)
    assert first.returncode == 75, first.stderr
    assert first.stdout.partition(" UTC: ")[2].startswith(
        "2019-06-14 to 2019-06-15: 2 days: 1 published, 1 waiting, 1 overdue in "
    )
    assert real.manifest("dbs_eos")["tables"]["dbs_eos"]["rows"] > 0
    run = real.manifest("dbs_eos")["run"]
    second = daily(real.settings, *span)
    assert "1 day: 1 waiting" in second.stdout
    assert real.manifest("dbs_eos")["run"] == run
