"""``cmsspark daily`` writes a mail when there is trouble, and none else."""

from __future__ import annotations

import email
import email.policy
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pytest

from cmsspark.apps.daily import notify as daily_notify
from cmsspark.apps.daily.notify import notify
from cmsspark.apps.daily.planner import PlannedTask
from cmsspark.apps.daily.run import DailyReport, TaskOutcome, update_record
from cmsspark.base import dates
from cmsspark.base.manifests import Manifest
from cmsspark.run.run_context import running
from cmsspark.store.daily_state import DayRecord, Note, day_key
from cmsspark.store.own_jobs import find_job
from tests.apps.daily.killed_daily import DAYS, JOB, LAST, Mornings


@pytest.fixture
def place(tmp_path: Path) -> Mornings:
    return Mornings(tmp_path).prepare()


def end(place: Mornings) -> None:
    notify(place.daily(), DAYS[0], LAST, place.work())


@contextmanager
def mail_server() -> Iterator[tuple[int, list[bytes]]]:
    """A port where mail is taken, and what came."""
    came: list[bytes] = []

    class Talk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                if line.upper().startswith(b"DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    came.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                self.wfile.write(b"250 fine\r\n")
                if line.upper().startswith(b"QUIT"):
                    return

    with socketserver.TCPServer(("127.0.0.1", 0), Talk) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], came
        finally:
            server.shutdown()
            thread.join()


def test_failures_are_reported_by_mail_and_success_is_not(place: Mornings) -> None:
    with mail_server() as (port, came):
        place.daily_settings = (
            f"daily: {{mail: {{to: [a@b], from: c@d, server: 127.0.0.1, port: {port}}}}}\n"
        )
        place.codes["run", LAST] = 65
        end(place)
        place.codes.clear()
        end(place)
    (mail,) = came
    host = socket.gethostname()
    message = email.message_from_bytes(mail, policy=email.policy.default)
    assert message["Subject"] == f"cmsspark on {host}: dbs_eos 2026-01-31 failed (1 failed)"
    assert message["Date"].datetime.year > 2000
    first = message.get_content().splitlines()[0]
    assert first == "2026-01-31 dbs_eos: failed (65): run_spark dbs_eos ended with 65"


def test_what_waits_for_too_long_is_trouble(place: Mornings) -> None:
    folder = place.log_folder(LAST)
    folder.rename(folder.with_name("31.tmp"))
    with mail_server() as (port, came):
        place.daily_settings = (
            f"daily: {{mail: {{to: [a@b], from: c@d, server: 127.0.0.1, port: {port}}}}}\n"
        )
        end(place)
        assert came == []
        place.now += 48 * 3_600
        end(place)
    told = came[0].replace(b"=\r\n", b"")
    assert b"waiting for eos since 2026-02-01 06:00 UTC, overdue: eos: " in told
    assert b"2026/01/31.tmp is not final yet" in told
    # Of the only stream that the job reads, nothing can be left out.
    step = b"if it never will: cmsspark daily skip 20260131 dbs_eos --reason"
    assert step in told and b"count without" not in told


def test_a_wait_of_which_only_details_change_is_one_wait(place: Mornings) -> None:
    task = PlannedTask(LAST, find_job("data_aggregation"), "missing")
    record, rules = DayRecord(), place.daily().config.rules
    signatures = []
    for hour, text in enumerate(
        (
            "no eos log for 2026-01-31 (days there: 2026-01-30)",
            "no eos log for 2026-01-31 (days there: 2026-01-30, 2026-02-01; eos: none)",
            "eos of 2026-01-31 was written 3 minutes ago",
            "no aaa log for 2026-01-31",
        )
    ):
        update_record(record, TaskOutcome(task, "waiting", 75, text), hour, rules)
        signatures.append((record.signature, record.first_ms))
    assert signatures[0] == signatures[1]
    # Of the same input; what is to be done is another thing, so that it is mailed.
    assert signatures[2][1] == 0 and signatures[2][0] != signatures[0][0]
    assert signatures[3][1] == 3


def test_an_overdue_day_of_several_streams_says_how_it_is_counted_without_one(
    place: Mornings,
) -> None:
    daily = place.daily()
    task = PlannedTask(DAYS[0], find_job("data_aggregation"), "missing")
    step = daily._step_without(task, ("cmssw", "dbs"))
    assert "count without: `sources: {cmssw: partial}` under daily in the settings" in step


@contextmanager
def mails(place: Mornings) -> Iterator[list[bytes]]:
    with mail_server() as (port, came):
        place.daily_settings = (
            f"daily: {{mail: {{to: [a@b], from: c@d, server: 127.0.0.1, port: {port}}}}}\n"
        )
        yield came


def test_lasting_trouble_is_mailed_once_and_again_when_it_changes(place: Mornings) -> None:
    with mails(place) as came:
        place.codes["run", LAST] = 65
        for _ in range(5):
            end(place)
        # Once, and once more when it is given up.
        assert len(came) == 2
        assert b"given up (1 failed" in came[1].replace(b"=\r\n", b"") or b"1 given up" in came[1]
        place.log(LAST, 1_001)
        place.codes["run", LAST] = 70
        end(place)
        end(place)
        assert len(came) == 3
        # A second day fails beside the one that is known.
        place.codes["run", DAYS[2]] = 65
        (Path(place.fout) / "dbs_eos" / DAYS[2].isoformat() / "CURRENT").unlink()
        end(place)
    assert len(came) == 4


def test_the_subject_is_what_was_not_mailed_before() -> None:
    record = DayRecord(word="waiting", code=75, text="no eos log for 2026-01-22")
    silent = ["2026-01-31 dbs_eos: eos has no access of T2_X_Y"]
    report = DailyReport(DAYS[1], LAST, [], [], {"2026-01-22 dbs_eos": record}, silent)
    assert daily_notify._subject(report, []).endswith(": sites fell silent (1 unfinished before)")
    about = daily_notify._subject(report, ["2026-01-22 dbs_eos"])
    assert about.endswith(": dbs_eos 2026-01-22 waits for eos (1 unfinished before)")


def test_trouble_whose_mail_could_not_be_sent_is_mailed_the_next_time(place: Mornings) -> None:
    place.daily_settings = "daily: {mail: {to: [a@b], from: c@d, server: 127.0.0.1, port: 1}}\n"
    place.codes["run", LAST] = 65
    end(place)
    with mails(place) as came:
        end(place)
    assert len(came) == 1


def test_days_that_left_the_window_undone_are_named_until_they_are_acknowledged(
    place: Mornings, capsys: pytest.CaptureFixture[str]
) -> None:
    place.codes["run", DAYS[0]] = 65
    place.work()
    place.now += 5 * 86_400
    first = place.daily().window_start()
    for _ in range(2):
        assert notify(place.daily(), first, LAST, place.work(first=first)) == 65
        assert capsys.readouterr().out.endswith(
            ". Exit code 65. Unfinished before: 2026-01-22 dbs_eos\n"
        )
    acknowledge(place, DAYS[0])
    assert notify(place.daily(), first, LAST, place.work(first=first)) == 0
    assert "nfinished" not in capsys.readouterr().out


def test_a_day_that_was_done_by_hand_after_it_left_the_window_is_forgotten(
    place: Mornings,
) -> None:
    place.codes["run", DAYS[0]] = 65
    place.work()
    place.store(DAYS[0])
    place.publish(DAYS[0])
    assert place.daily().unfinished(LAST) == {}
    assert place.daily().state.read().days == {}


def test_days_that_no_daily_checked_are_named(place: Mornings) -> None:
    place.work(last=DAYS[2])
    place.work(first=DAYS[5])
    assert sorted(place.daily().unfinished(DAYS[5])) == [
        "2026-01-25 dbs_eos",
        "2026-01-26 dbs_eos",
    ]


def acknowledge(place: Mornings, day: date) -> None:
    with place.daily().state.change() as state:
        record = state.days[day_key(day, "dbs_eos")]
        record.acknowledged = Note(reason="the log is lost", user="me", at_ms=0)
        record.acknowledged_signature = record.signature


def test_acknowledged_trouble_is_no_trouble_until_it_changes(place: Mornings) -> None:
    place.codes["run", LAST] = 65
    place.work(first=LAST)
    acknowledge(place, LAST)
    assert [(one.word, one.code) for one in place.work(first=LAST)] == [("acknowledged", 0)]
    place.codes["run", LAST] = 70
    assert [(one.word, one.code) for one in place.work(first=LAST)] == [("failed", 70)]


# Freshness
# ---------------------------------------------------------------------------------------------------------


def test_metrics_show_how_fresh_each_day_of_a_job_is(place: Mornings) -> None:
    place.daily_settings = "daily: {metrics: cms.prom}\n"
    place.codes["run", LAST] = 65
    # A trial in another store says nothing about this one.
    with running(
        place.settings(), str(place.folder / "trial"), JOB, LAST, place.told.append
    ) as trial:
        trial.manifest = Manifest.from_dict({"run": "trial", "job": JOB, "day": str(LAST)})
    end(place)
    text = (place.folder / "cms.prom").read_text()
    assert f"cmsspark_daily_heartbeat_timestamp_seconds {float(int(place.now))}" in text
    assert 'cmsspark_daily_day_done{job="dbs_eos",day="2026-01-30"} 1.0' in text
    assert 'cmsspark_daily_day_done{job="dbs_eos",day="2026-01-31"} 0.0' in text
    assert 'cmsspark_daily_day_stored_timestamp_seconds{job="dbs_eos",day="2026-01-30"} ' in text
    assert (
        'cmsspark_daily_day_stored_timestamp_seconds{job="dbs_eos",day="2026-01-31"} ' not in text
    )
    newest = float(dates.timestamp_ms_bounds(DAYS[-2])[1] // 1000)
    assert f'cmsspark_daily_newest_day_end_timestamp_seconds{{job="dbs_eos"}} {newest}' in text


def test_a_heartbeat_replaces_its_own_metric_and_keeps_all_others(tmp_path: Path) -> None:
    path = tmp_path / "cms.prom"
    daily_notify.update(path, daily_notify.error_metrics(65, 100.0))
    daily_notify.update(path, daily_notify.heartbeat(200.0))
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert sorted(lines) == [
        "cmsspark_daily_end_timestamp_seconds 100.0",
        "cmsspark_daily_exit_code 65.0",
        "cmsspark_daily_heartbeat_timestamp_seconds 200.0",
    ]
    assert path.read_text().count("# TYPE cmsspark_daily_heartbeat") == 1
