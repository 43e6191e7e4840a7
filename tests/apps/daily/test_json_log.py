"""The log as JSON has one event a line, with OpenTelemetry's names; CMS's cron metrics."""

from __future__ import annotations

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from cmsspark.apps.daily.config import Targets, daily_config, exposition, load_targets
from cmsspark.apps.daily.notify import as_document, cron_metrics, notify, send_cron
from cmsspark.apps.daily.run import Commands, DailyReport, JsonLog
from tests.apps.daily.killed_daily import DAYS, LAST, Mornings

NAMES = {"Timestamp", "SeverityText", "SeverityNumber", "Body", "Resource", "Attributes"}


def events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_a_line_with_the_names_of_opentelemetry() -> None:
    stream = io.StringIO()
    log = JsonLog(stream)
    log("[1 of 3] dbs_eos of 2026-01-31 (missing): failed (65): a\nb")
    log("warning: 2026-01-31: eos is small")
    failed, warned = events(stream)
    assert failed.keys() == NAMES
    assert (failed["SeverityText"], failed["SeverityNumber"]) == ("ERROR", 17)
    assert failed["Attributes"] == {"cms.job": "dbs_eos", "cms.day": "2026-01-31"}
    assert (warned["SeverityText"], warned["SeverityNumber"]) == ("WARN", 13)


def test_what_commands_print_is_wrapped_line_by_line_and_the_code_stays() -> None:
    stream = io.StringIO()
    script = "import sys; print('out'); sys.stderr.write('err\\n'); sys.exit(3)"
    assert Commands(JsonLog(stream))([sys.executable, "-c", script]) == 3
    assert {event["Body"] for event in events(stream)} == {"out", "err"}


def test_cron_metrics_are_those_of_cms_s_cron_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8S_ENV", "prod")
    labels = 'script="cmsspark_daily",env="prod",period="1d"'
    assert exposition(cron_metrics("start", 5.0)).splitlines()[2] == (
        f"cmsmon_cron_start_prod_cmsspark_daily{{{labels}}} 5.0"
    )
    assert exposition(cron_metrics("end", 6.0, 75)).splitlines()[2] == (
        f'cmsmon_cron_end_prod_cmsspark_daily{{{labels},status="75"}} 6.0'
    )


def test_begin_and_end_are_pushed_to_the_group_of_cms_s_cron_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("K8S_ENV", raising=False)
    came: list[tuple[str, str, bytes]] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.command, self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        targets = Targets(pushgateway=f"http://127.0.0.1:{server.server_address[1]}")
        assert send_cron(targets, "start", 1.0) == []
        assert send_cron(targets, "end", 2.0, 0) == []
        server.shutdown()
    assert [method for method, _, _ in came] == ["POST", "POST"]
    assert came[0][1].startswith("/metrics/job/cmsmon-cron-default/instance/")
    assert b"cmsmon_cron_start_default_cmsspark_daily{" in came[0][2]
    assert b'status="0"' in came[1][2]


def test_a_pushgateway_that_is_down_is_named_and_changes_nothing() -> None:
    (problem,) = send_cron(Targets(pushgateway="http://127.0.0.1:1"), "start", 1.0)
    assert problem.startswith("metrics cannot be pushed")
    assert send_cron(Targets(), "start", 1.0) == []


def test_the_settings_come_before_the_variable_of_cms_s_cron_jobs(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Mornings(tmp_path)  # type: ignore[arg-type]
    monkeypatch.setenv("PUSHGATEWAY_URL", "http://one:9091/")
    assert daily_config(place.settings()).pushgateway == "http://one:9091"
    place.daily_settings = "daily: {pushgateway: 'http://two:9091'}\n"
    assert load_targets(place.settings()).pushgateway == "http://two:9091"


def test_json_of_daily_has_each_day_with_its_state_and_why(
    tmp_path: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Mornings(tmp_path).prepare()  # type: ignore[arg-type]
    folder = place.log_folder(LAST)
    folder.rename(folder.with_name("31.tmp"))
    place.codes["run", DAYS[-2]] = 65
    outcomes = place.work(first=DAYS[-3])
    assert notify(place.daily(), DAYS[-3], LAST, outcomes, as_json=True) == 65
    document = json.loads(capsys.readouterr().out)
    states = {entry["day"]: entry["state"] for entry in document["days"]}
    assert states == {
        str(DAYS[-3]): "published",
        str(DAYS[-2]): "failed",
        str(LAST): "waiting",
    }
    assert document["days"][-1]["waits_for"] == ["eos"]
    assert document["exit_code"] == 65
    assert as_document(DailyReport(LAST, LAST, []), 0)["days"] == []
