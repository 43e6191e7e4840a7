"""S1 and S2 of publishing: planted secrets show nowhere, however a publication ends."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.activemq import Certificates
from tests.planted import leaks, run_watched
from tests.ports import free_port
from tests.publish.days import row, rows, store_day
from tests.publish.fake_broker import Faults, broker
from tests.publish.fake_http import Answer, http_server

USER, PASSWORD = "planted-user-91", "planted-password-17"
CODED = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
PERSON = "Planted Person"
HOME = f"/store/user/{PERSON.lower().replace(' ', '')}"
SAID = f"login of {USER} with {PASSWORD} ({CODED}) failed"


@contextmanager
def stomp(fault: Faults) -> Iterator[dict[str, Any]]:
    with broker(*[fault] * 50) as fake:
        yield {"topic": "/queue/test", "host_and_ports": f"127.0.0.1:{fake.port}"}


@contextmanager
def http(answer: Answer) -> Iterator[dict[str, Any]]:
    with http_server(last=answer) as fake:
        yield {"url": f"http://127.0.0.1:{fake.port}/cms-test"}


@contextmanager
def nobody() -> Iterator[dict[str, Any]]:
    yield {"topic": "/queue/test", "host_and_ports": f"127.0.0.1:{free_port()}"}


@pytest.mark.parametrize(
    ("sink", "end", "code"),
    [
        ("stomp", lambda: stomp(Faults()), 3),
        ("stomp", lambda: stomp(Faults(login_error=f"password: {SAID}")), 77),
        ("stomp", lambda: stomp(Faults(receipt="never")), 75),
        ("stomp", lambda: stomp(Faults(poison=lambda body: True)), 3),
        ("stomp", nobody, 75),
        ("http", lambda: http(Answer()), 3),
        ("http", lambda: http(Answer(401, body=SAID.encode())), 77),
        ("http", lambda: http(Answer(500, body=SAID.encode())), 75),
        (
            "http",
            lambda: http(Answer(302, {"Location": f"https://{USER}:{PASSWORD}@x/?k={CODED}"})),
            75,
        ),
    ],
    ids=[
        "sent",
        "login",
        "no-receipt",
        "refused",
        "nobody",
        "http-sent",
        "http-login",
        "http-error",
        "http-redirect",
    ],
)
def test_no_planted_secret_shows_however_a_publication_ends(
    tmp_path: Path, certificates: Certificates, sink: str, end: Callable[[], Any], code: int
) -> None:
    """The row with an invalid document names a person: its values may stand in the
    private quarantine alone.
    """
    bad = row(7, site_name="T2_X", nacc=-1, dataset_name=f"{HOME}/x", primary_name=PERSON)
    store_day(tmp_path / "store", [*rows(3), bad])
    (tmp_path / "cmsspark.yaml").write_text(
        "store: store\nstate_dir: state\npublishing: {patience: 0.3}\n"
    )
    amq = tmp_path / "amq.json"
    command = [
        sys.executable,
        "-c",
        "from cmsspark.main import main; main()",
        "publish",
        "--date",
        "20260115",
    ]
    with end() as there:
        amq.write_text(json.dumps({"username": USER, "password": PASSWORD, **there}))
        amq.chmod(0o600)
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(tmp_path)}
        options = ["--sink", sink, "--amq", str(amq), "--debug", "--verbose"]
        ran = run_watched([*command, *options], tmp_path, environment)
    assert ran.code == code, ran.printed.decode()
    assert any(b"publish" in line for line in ran.argv)
    secrets = {
        "the user": USER.encode(),
        "the password": PASSWORD.encode(),
        "their coded form": CODED.encode(),
        "a person": PERSON.encode(),
        "a person's folder": HOME.encode(),
    }
    assert leaks(secrets, ran, tmp_path / "state", except_in=["quarantine.jsonl"]) == []


@pytest.mark.parametrize("what", ["open", "encrypted", "not there", "no key"])
def test_no_planted_key_shows_when_certificates_are_wrong(
    tmp_path: Path, certificates: Certificates, what: str
) -> None:
    store_day(tmp_path / "store", rows(1))
    key = tmp_path / "client.key"
    content = Path(certificates["client.key"]).read_text()
    key.write_text(content if what != "no key" else "planted-key-material\n" + content[:400])
    key.chmod(0o644 if what == "open" else 0o600)
    if what == "not there":
        key.unlink()
    amq = tmp_path / "amq.json"
    given = {
        "topic": "/queue/test",
        "host_and_ports": "localhost:1",
        "username": USER,
        "password": PASSWORD,
        "ca": certificates["ca.pem"],
        "cert": certificates["client.pem"],
        "key": str(key),
    }
    amq.write_text(json.dumps({name: str(value) for name, value in given.items()}))
    amq.chmod(0o600)
    command = [
        sys.executable,
        "-c",
        "from cmsspark.main import main; main()",
        "publish",
        "--date",
        "20260115",
        "--fout",
        "store",
        "--amq",
        str(amq),
        "--debug",
    ]
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "CMSSPARK_DEBUG": "1",
    }
    (tmp_path / "cmsspark.yaml").write_text("publishing: {patience: 0.3}\n")
    ran = run_watched(command, tmp_path, environment)
    assert ran.code == {"open": 77, "encrypted": 75, "not there": 78, "no key": 78}[what], (
        ran.printed.decode()
    )
    lines = {
        f"line {n} of the key": line.encode() for n, line in enumerate(content.splitlines()[1:4])
    }
    lines |= {
        "the key": b"planted-key-material",
        "the user": USER.encode(),
        "the password": PASSWORD.encode(),
    }
    assert leaks(lines, ran, tmp_path / "state") == []


def test_what_publishing_leaves_is_its_owner_s_alone(tmp_path: Path) -> None:
    """S6, and the quarantine: whoever looks below the state directory from outside sees nothing."""
    store_day(tmp_path / "store", [*rows(3), row(9, nacc=-1)])
    (tmp_path / "cmsspark.yaml").write_text("store: store\nstate_dir: state\n")
    command = [
        sys.executable,
        "-c",
        "import os; os.umask(0); from cmsspark.main import main; main()",
    ]
    ran = run_watched(
        [*command, "publish", "--date", "20260115"],
        tmp_path,
        {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.code == 3, ran.printed
    outbox = tmp_path / "state" / "outbox"
    day = next(outbox.glob("*/*/*"))
    assert day.stat().st_mode & 0o077 == 0
    for file in [*day.rglob("*.jsonl"), *day.rglob("manifest.json")]:
        assert file.stat().st_mode & 0o077 == 0, file
