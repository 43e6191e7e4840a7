"""``cmsspark publish`` and ``cmsspark outbox``: what they say, what they leave, and
their exit codes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmsspark.store import run_history
from tests.commands import CMSSPARK, run_command
from tests.ports import free_port
from tests.publish.days import DAY, MANIFEST, rows, store_day
from tests.publish.days import row as one
from tests.publish.fake_broker import Faults, broker
from tests.publish.fake_http import Answer, http_server

#: What a terminal would obey: a title, a colour, a line, text from right to left.
CONTROLS = "\x1b]0;evil\x07\x1b[31m evil\x9b2J \u202e gnp"


class Place:
    """A folder with a store and a state, and the command run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def store(self, given: list[dict[str, Any]], run: str = "r1") -> None:
        store_day(self.folder / "store", given, run)

    def __call__(self, *arguments: str, settings: str = "") -> subprocess.CompletedProcess[str]:
        (self.folder / "cmsspark.yaml").write_text(f"store: store\nstate_dir: state\n{settings}")
        environment = {
            **os.environ,
            "HOME": str(self.folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        return run_command(CMSSPARK, *arguments, folder=self.folder, environ=environment)

    def publish(self, *arguments: str, settings: str = "") -> subprocess.CompletedProcess[str]:
        return self("publish", "--date", "20260115", *arguments, settings=settings)

    def spooled(self, folder: str = "state/published") -> list[dict[str, Any]]:
        files = sorted((self.folder / folder).rglob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def credentials(self, port: int, **more: Any) -> str:
        path = self.folder / "amq_broker.json"
        content = {
            "topic": "/queue/test",
            "host_and_ports": f"127.0.0.1:{port}",
            "username": "u",
            "password": "planted",
        }
        path.write_text(json.dumps({**content, **more}))
        path.chmod(0o600)
        return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_all_is_published_and_recorded_where_nobody_reads_what_is_printed(place: Place) -> None:
    place.store(rows(3))
    (place.folder / "cmsspark.yaml").write_text("store: store\nstate_dir: state\n")
    reader, writer = os.pipe()
    os.close(reader)
    start = "from cmsspark.main import main; main()"
    environment = {
        **os.environ,
        "HOME": str(place.folder),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-c", start, "publish", "--date", "20260115"]
    done = subprocess.run(
        command,
        cwd=place.folder,
        env=environment,
        stdout=writer,
        stderr=-1,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    with run_history.open_history(place.folder / "state") as history:
        (published,) = history.published()
    assert (published.confirmed, published.waiting) == (4, 0)


def test_a_day_goes_to_the_file_spool_and_is_counted(place: Place) -> None:
    place.store(rows(1_200))
    done = place.publish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == [
        "table",
        "sent",
        "confirmed",
        "in",
        "doubt",
        "to",
        "send",
        "quarantined",
    ]
    assert done.stdout.splitlines()[1].split() == [
        "data_aggregation",
        "1,201",
        "1,201",
        "0",
        "0",
        "0",
    ]
    assert (
        len({body["metadata"]["_id"] for body in place.spooled()}) == len(place.spooled()) == 1_201
    )


def test_the_same_day_again_sends_nothing_and_a_new_folder_gets_all(place: Place) -> None:
    place.store(rows(3))
    place.publish()
    assert "nothing has changed" in place.publish().stdout
    assert place.publish("--spool", "elsewhere").returncode == 0
    assert len(place.spooled("elsewhere")) == 4


def test_a_spool_that_was_deleted_is_written_again(place: Place) -> None:
    import shutil

    place.store(rows(3))
    place.publish()
    shutil.rmtree(place.folder / "state/published")
    place.publish()
    assert len(place.spooled()) == 4


def test_a_changed_day_reports_what_is_unchanged_and_gone(place: Place) -> None:
    place.store(rows(3))
    place.publish()
    place.store([one(0), one(1, nacc=4)], "r2")
    done = place.publish()
    assert "unchanged since the last time: 1; gone from the day: 1" in done.stdout


def test_a_dry_run_prints_documents_and_leaves_nothing(place: Place) -> None:
    place.store(rows(3))
    done = place.publish("--dry-run", "--limit", "2")
    assert [json.loads(line)["primary_name"] for line in done.stdout.splitlines()] == ["P0", "P1"]
    assert "2 documents of data_aggregation for 2026-01-15 would go to" in done.stderr
    assert not (place.folder / "state").exists()


def test_a_day_that_is_not_stored_leaves_nothing(place: Place) -> None:
    place.store(rows(3))
    refused = place("publish", "--date", "20260114")
    assert refused.returncode == 66 and "days 2026-01-15" in refused.stderr
    assert not list((place.folder / "state").rglob("2026-01-14"))
    assert "2026-01-14" not in place("outbox", "list").stdout


def test_bad_rows_end_in_3_and_all_others_are_confirmed(place: Place) -> None:
    place.store([one(0), one(1, nacc=-1), one(2)])
    done = place.publish()
    assert done.returncode == 3
    assert "1 documents were refused and kept aside" in done.stderr
    assert len(place.spooled()) == 3
    assert "quarantine.jsonl" in place("outbox", "show").stdout


def test_a_day_that_is_not_stored_is_66_and_names_the_days(place: Place) -> None:
    place.store(rows(1))
    done = place("publish", "--date", "20260114")
    assert done.returncode == 66
    assert DAY.isoformat() in done.stderr


def test_no_broker_is_75_and_resume_sends_what_was_left(place: Place) -> None:
    place.store(rows(3))
    port = free_port()
    done = place.publish(
        "--amq", place.credentials(port), settings="publishing: {patience: 0.2}\n"
    )
    assert done.returncode == 75
    assert f"127.0.0.1:{port}: Connection refused" in done.stderr
    assert "planted" not in done.stderr + done.stdout
    assert place("outbox", "list").stdout.splitlines()[1].split()[2:4] == ["0", "4"]


def test_resume_needs_no_store(place: Place) -> None:
    import shutil

    place.store(rows(3))
    with broker(Faults(receipt="never"), *[Faults(close_at_once=True)] * 40) as fake:
        credentials = place.credentials(fake.port)
        first = place.publish("--amq", credentials, settings="publishing: {patience: 0.5}\n")
        assert first.returncode == 75, first.stderr
        shutil.rmtree(place.folder / "store")
        fake.faults.clear()
        done = place.publish("--amq", credentials, "--resume")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1].split() == ["data_aggregation", "4", "4", "0", "0", "0"]
        assert "nothing is open" in place.publish("--amq", credentials, "--resume").stdout


def test_open_credentials_are_77_and_missing_ones_78(place: Place) -> None:
    place.store(rows(1))
    path = Path(place.credentials(1))
    path.chmod(0o644)
    assert place.publish("--amq", str(path)).returncode == 77
    assert place.publish("--amq", "nothing.json").returncode == 78
    assert place.publish("--sink", "stomp").returncode == 2


def test_settings_are_checked_with_their_line(place: Place) -> None:
    place.store(rows(1))
    done = place.publish(settings="publishing:\n  snik: file\n")
    assert done.returncode == 78
    assert "cmsspark.yaml, line 4" in done.stderr
    assert place.publish(settings="publishing: {sink: pigeon}\n").returncode == 78
    assert place.publish(settings="publishing: {patience: soon}\n").returncode == 78
    assert (
        place.publish(
            settings="publishing: {http_metadata: false, http_top_level: false}\n"
        ).returncode
        == 78
    )


def test_single_people_s_tables_and_unknown_jobs_are_not_published(place: Place) -> None:
    place.store(rows(1))
    place.publish()
    assert all("user" not in body for body in place.spooled())
    assert place.publish("--job", "../etc").returncode == 2
    assert place.publish("--job", "cern_monit").returncode == 2


def test_a_damaged_stored_part_is_65_and_named(place: Place) -> None:
    place.store(rows(4))
    part = next((place.folder / "store").rglob("part-00001.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    done = place.publish()
    assert done.returncode == 65
    assert "part-00001.parquet" in done.stderr
    assert place.spooled() == []


def test_a_csv_store_gives_the_same_documents(place: Place) -> None:
    import csv

    place.store(rows(3))
    place.publish()
    table = next((place.folder / "store").rglob("data_aggregation/part-00000.parquet")).parent
    for part in table.iterdir():
        part.unlink()
    with open(table / "part-00000.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(one(0)))
        writer.writeheader()
        writer.writerows(rows(3))
    manifest = {**MANIFEST, "tables": {"data_aggregation": {"rows": 3, "format": "csv"}}}
    (table.parent / "manifest.json").write_text(json.dumps(manifest))
    assert "nothing has changed" in place.publish().stdout


def test_the_outbox_can_be_seen_discarded_and_rebuilt(place: Place) -> None:
    place.store(rows(3))
    place.publish(
        "--amq", place.credentials(free_port()), settings="publishing: {patience: 0.2}\n"
    )
    assert "4 READY" in place("outbox", "show").stdout
    assert place("outbox", "retry").returncode == 0
    assert "0 confirmed, 4 in doubt" in place("outbox", "rebuild").stdout
    assert "1 batches were discarded" in place("outbox", "discard", "--yes").stdout
    assert place("outbox", "list").stdout.splitlines()[1].split()[2:5] == ["0", "0", "0"]
    assert place("outbox", "show", "--date", "20250101").returncode == 66


# -- over HTTP
# -------------------------------------------------------------------------------------------------


def http_credentials(place: Place, port: int, mode: int = 0o600) -> str:
    path = place.folder / "monit.json"
    content = {
        "url": f"http://127.0.0.1:{port}/cms-test",
        "username": "planted-user",
        "password": "planted-secret",
    }
    path.write_text(json.dumps(content))
    path.chmod(mode)
    return str(path)


def test_what_goes_over_http_is_what_the_golden_file_says(place: Place) -> None:
    place.store([one(0), one(1, cpu_time=1.5, wc_time=2.0, remote_nacc=1)])
    with http_server() as fake:
        done = place.publish("--sink", "http", "--amq", http_credentials(place, fake.port))
        assert done.returncode == 0, done.stderr
        assert f"to http://127.0.0.1:{fake.port}/cms-test" in done.stdout
        (request,) = fake.requests
    golden = (Path(__file__).parents[1] / "golden" / "publish" / "http.json").read_bytes()
    assert request.path == "/cms-test"
    assert request.body == golden.rstrip(b"\n")
    assert "planted" not in done.stdout + done.stderr


def test_over_http_a_wrong_password_is_77_at_once_and_nothing_is_lost(place: Place) -> None:
    place.store(rows(3))
    with http_server(last=Answer(401, body=b"planted-user is not known")) as fake:
        credentials = http_credentials(place, fake.port)
        done = place.publish("--sink", "http", "--amq", credentials)
        assert (done.returncode, len(fake.requests)) == (77, 1)
        assert "planted" not in done.stdout + done.stderr
        assert done.stdout.splitlines()[1].split()[1:] == ["0", "0", "0", "4", "0"]
        fake.last = Answer()
        assert place.publish("--sink", "http", "--amq", credentials, "--resume").returncode == 0
        assert len(fake.stored) == 4


def test_over_http_without_a_server_it_is_75_and_resume_sends_what_was_left(place: Place) -> None:
    place.store(rows(3))
    port = free_port()
    done = place.publish(
        "--sink",
        "http",
        "--amq",
        http_credentials(place, port),
        settings="publishing: {patience: 0.2}\n",
    )
    assert done.returncode == 75
    assert f"127.0.0.1:{port}: Connection refused" in done.stderr


def test_open_http_credentials_are_77_and_the_settings_name_the_sink(place: Place) -> None:
    place.store(rows(1))
    assert (
        place.publish("--sink", "http", "--amq", http_credentials(place, 1, 0o640)).returncode
        == 77
    )
    with http_server() as fake:
        http_credentials(place, fake.port)
        done = place.publish(settings="publishing: {sink: http, amq: monit.json}\n")
        assert done.returncode == 0, done.stderr
        assert len(fake.stored) == 2


def test_the_outcome_of_the_documents_is_entered_in_the_run_history(place: Place) -> None:
    place.store(rows(3))
    assert place.publish().returncode == 0
    assert place.publish().returncode == 0
    with run_history.open_history(place.folder / "state") as book:
        (found,) = book.published()
    assert (found.table, found.stored_run, found.confirmed, found.waiting) == (
        "data_aggregation",
        "r1",
        4,
        0,
    )


@pytest.mark.parametrize(
    "fault",
    [Faults(login_error=f"password wrong{CONTROLS}"), Faults(poison_error=f"no{CONTROLS}")],
)
def test_a_broker_s_text_reaches_neither_terminal_nor_log_with_control_characters(
    place: Place, fault: Faults
) -> None:
    fault.poison = lambda body: bool(fault.poison_error)
    place.store(rows(1))
    with broker(*[fault] * 50) as fake:
        done = place.publish(
            "--amq", place.credentials(fake.port), settings="publishing: {patience: 0.3}\n"
        )
    shown = done.stdout + done.stderr + place("outbox", "show").stdout
    assert "evil" in shown
    assert not [letter for letter in shown if not letter.isprintable() and letter != "\n"]


def test_a_password_that_travels_in_the_open_is_announced_or_refused(place: Place) -> None:
    place.store(rows(1))
    credentials = place.credentials(61613, host_and_ports="no-such-host.invalid:61613")
    done = place.publish("--amq", credentials, settings="publishing: {patience: 0.1}\n")
    assert done.returncode == 75
    assert "the password is sent to no-such-host.invalid unencrypted" in done.stderr
    done = place.publish(
        "--amq", credentials, settings="publishing: {patience: 0.1, require_tls: true}\n"
    )
    assert done.returncode == 77
    here = place.publish(
        "--amq", place.credentials(free_port()), settings="publishing: {patience: 0.1}\n"
    )
    assert "unencrypted" not in here.stderr


def test_resume_at_another_broker_names_what_waits_and_a_move_sends_it(place: Place) -> None:
    place.store(rows(3))
    gone = place.credentials(1, host_and_ports="no-such-host.invalid:61313")
    assert place.publish("--amq", gone, settings="publishing: {patience: 0.1}\n").returncode == 75
    with broker() as fake:
        here = place.credentials(fake.port)
        done = place.publish("--amq", here, "--resume")
        assert done.returncode == 75
        assert "4 for stomp-test-" in done.stderr
        command = done.stderr.rpartition("cmsspark outbox move ")[2].split()
        assert place("outbox", "move", *command).returncode == 0
        assert place.publish("--amq", here, "--resume").returncode == 0
        assert len(fake.stored) == 4


def test_a_broker_that_is_added_does_not_lose_what_waits(place: Place) -> None:
    place.store(rows(3))
    credentials = place.credentials(free_port())
    assert (
        place.publish("--amq", credentials, settings="publishing: {patience: 0.1}\n").returncode
        == 75
    )
    with broker() as fake:
        more = place.credentials(
            1, host_and_ports=f"127.0.0.1:{free_port()},localhost:{fake.port}"
        )
        done = place.publish("--amq", more, "--resume")
        assert done.returncode == 0, done.stderr
        assert len(fake.stored) == 4


def test_a_destination_to_move_is_named_clearly(place: Place) -> None:
    place.store(rows(1))
    place.publish()
    assert place("outbox", "move", "--from", "no", "--to", "file").returncode == 66
    assert place("outbox", "move", "--from", "file", "--to", "file").returncode == 2


def test_what_a_wrong_destination_refused_comes_back_with_resume(place: Place) -> None:
    place.store(rows(3))
    with http_server(last=Answer(400, body=b"no such producer")) as fake:
        credentials = http_credentials(place, fake.port)
        done = place.publish("--sink", "http", "--amq", credentials)
        assert done.returncode == 3
        assert "4 documents that the destination refused" in done.stderr
        assert place.publish("--sink", "http", "--amq", credentials, "--resume").returncode == 3
        fake.last = Answer()
        done = place.publish("--sink", "http", "--amq", credentials, "--resume")
        assert (done.returncode, len(fake.stored)) == (0, 4), done.stderr


def test_an_attempt_that_fails_is_recorded_with_the_destination_s_reason(place: Place) -> None:
    place.store(rows(3))
    amq = place.credentials(1)
    done = place.publish("--amq", amq, settings="publishing: {patience: 0.2}\n")
    assert done.returncode == 75
    with run_history.open_history(place.folder / "state") as history:
        (published,) = history.published()
    assert (published.confirmed, published.waiting) == (0, 4)
    assert published.outbox.startswith("stomp-")
    assert "refused" in published.reason.lower()


def test_a_destination_that_cannot_be_used_is_recorded_too(place: Place) -> None:
    place.store(rows(3))
    assert place.publish("--amq", "nowhere.json").returncode == 78
    with run_history.open_history(place.folder / "state") as history:
        (published,) = history.published()
    assert (published.outbox, published.confirmed, published.waiting) == ("", 0, 3)
    assert "credentials file" in published.reason
