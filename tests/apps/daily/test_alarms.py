"""Mail and metrics reach who should hear, as whom they should, and nobody learns the
password (R8, S1, S2).
"""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.daily import config
from cmsspark.apps.daily.config import Mail, Push, exposition, write_metrics
from cmsspark.base.errors import CmssparkError, NotAllowed, OutputError, SettingsError
from cmsspark.settings.secrets import read_password
from tests.activemq import Certificates

PASSWORD = "planted-pass-word"
METRICS = {
    "cms_exit_code": ("Its exit code.", {"": 0.0}),
    "cms_tasks": ("Days.", {'outcome="done"': 3.0}),
}


@dataclass
class Heard:
    """What came to a server: lines with those of the mail, and the addresses of TLS."""

    lines: list[str] = field(default_factory=list)
    was_secure: bool = False


#: Talks on a connection; returns when that has ended.
Talk = Callable[[socket.socket, Heard], None]


@contextmanager
def server(talk: Talk) -> Iterator[tuple[int, Heard]]:
    """A port on which connections are talked to, and what was heard."""
    heard, listening = Heard(), socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                talk(connection, heard)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1], heard
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def mail_talk(context: ssl.SSLContext | None, at_once: bool = False, accepts: bool = True) -> Talk:
    """A mail server with STARTTLS, or with TLS ``at_once``, that wants a login."""

    def talk(connection: socket.socket, heard: Heard) -> None:
        if at_once and context:
            connection, heard.was_secure = context.wrap_socket(connection, server_side=True), True
        stream = connection.makefile("rwb", buffering=0)
        stream.write(b"220 here\r\n")
        while line := stream.readline():
            heard.lines.append(line.decode().strip())
            word = heard.lines[-1].upper()
            if word.startswith("EHLO"):
                offer = b"250-STARTTLS\r\n" if context and not heard.was_secure else b""
                stream.write(b"250-here\r\n" + offer + b"250 AUTH PLAIN LOGIN\r\n")
            elif word == "STARTTLS" and context:
                stream.write(b"220 go on\r\n")
                stream.close()
                connection, heard.was_secure = (
                    context.wrap_socket(connection, server_side=True),
                    True,
                )
                stream = connection.makefile("rwb", buffering=0)
            elif word.startswith("AUTH"):
                stream.write(b"235 fine\r\n" if accepts else f"535 not {PASSWORD}\r\n".encode())
            elif word == "DATA":
                stream.write(b"354 go on\r\n")
                heard.lines += [one.decode().strip() for one in iter(stream.readline, b".\r\n")]
                stream.write(b"250 fine\r\n")
            elif word == "QUIT":
                stream.write(b"221 bye\r\n")
                break
            else:
                stream.write(b"250 fine\r\n")
        stream.close()
        connection.close()

    return talk


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def context(certificates: Certificates) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificates["server.pem"], certificates["server.key"])
    return made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    path.chmod(0o600)
    return path


def mail(port: int, **more: Any) -> Mail:
    return Mail(to=["a@b"], sender="c@d", port=port, **more)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_is_sent_over_tls_after_a_login(
    certificates: Certificates, context: ssl.SSLContext, secret: Path, security: str
) -> None:
    known = {"user": "me", "password_file": str(secret), "ca": certificates["ca.pem"]}
    with server(mail_talk(context, at_once=security == "tls")) as (port, heard):
        mail(port, security=security, **known).send("subject", "text")
    assert heard.was_secure
    (login,) = [line for line in heard.lines if line.startswith("AUTH PLAIN")]
    assert base64.b64decode(login.split()[2]) == f"\0me\0{PASSWORD}".encode()
    assert heard.lines.index(login) < heard.lines.index("Subject: subject")
    if security == "starttls":
        assert heard.lines.index("STARTTLS") < heard.lines.index(login)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_certificate_that_nobody_trusts_is_77_and_no_password_is_sent(
    certificates: Certificates, context: ssl.SSLContext, secret: Path, security: str
) -> None:
    known = {"user": "me", "password_file": secret, "ca": Path(certificates["other-ca.pem"])}
    with (
        server(mail_talk(context, at_once=security == "tls")) as (port, heard),
        pytest.raises(NotAllowed),
    ):
        mail(port, security=security, **known).send("subject", "text")
    assert not [line for line in heard.lines if line.startswith(("AUTH", "Subject"))]


def test_a_server_without_starttls_gets_no_mail(secret: Path) -> None:
    with (
        server(mail_talk(None)) as (port, heard),
        pytest.raises(OutputError, match="mail cannot be sent"),
    ):
        mail(port, security="starttls", user="me", password_file=str(secret)).send(
            "subject", "text"
        )
    assert not [line for line in heard.lines if line.startswith(("AUTH", "DATA"))]


def test_a_wrong_password_is_reported_and_does_not_show(secret: Path) -> None:
    with server(mail_talk(None, accepts=False)) as (port, _), pytest.raises(NotAllowed) as error:
        mail(port, user="me", password_file=str(secret)).send("subject", "text")
    assert "535 not ***" in error.value.text()
    assert PASSWORD not in error.value.text()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_password_that_others_can_read_is_refused_before_anything_is_sent(
    secret: Path, mode: int
) -> None:
    secret.chmod(mode)
    with server(mail_talk(None)) as (port, heard):
        url, login = (
            f"http://127.0.0.1:{port}/metrics/job/x",
            {"user": "me", "password_file": str(secret)},
        )
        for target in (
            lambda: mail(port, **login).send("s", "t"),
            lambda: Push(url=url, **login).send(METRICS),
        ):
            with pytest.raises(NotAllowed) as error:
                target()
            assert f"chmod 600 {secret}" in error.value.text()
    assert heard.lines == []


@pytest.mark.parametrize("content", [None, b"", b"\n\nlater", b"\xff\xfe"])
def test_a_password_that_is_not_there_is_78(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(SettingsError):
        read_password(path)


# Metrics
# -----------------------------------------------------------------------------------------------------------


def http_talk(answer: bytes) -> Talk:
    """Takes one request and gives ``answer``."""

    def talk(connection: socket.socket, heard: Heard) -> None:
        with connection.makefile("rb") as stream:
            head = list(iter(lambda: stream.readline().decode().strip(), ""))
            length = next(
                int(line.split(":")[1])
                for line in head
                if line.lower().startswith("content-length")
            )
            heard.lines += [*head, *stream.read(length).decode().splitlines()]
        connection.sendall(answer)

    return talk


def test_metrics_are_put_to_a_pushgateway(secret: Path) -> None:
    with server(http_talk(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")) as (port, heard):
        Push(
            url=f"http://127.0.0.1:{port}/metrics/job/cmsspark",
            user="me",
            password_file=str(secret),
        ).send(METRICS)
    assert heard.lines[0] == "PUT /metrics/job/cmsspark HTTP/1.1"
    assert (
        f"Authorization: Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"
        in heard.lines
    )
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in heard.lines
    assert heard.lines[-1] == 'cms_tasks{outcome="done"} 3.0'


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\nno: \r\n", OutputError, "400 Bad no:"),
        (f"HTTP/1.1 401 No\r\n\r\n{PASSWORD}".encode(), NotAllowed, "401 No ***"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n", OutputError, "302 Found"),
        (
            b"HTTP/1.1 500 Oh\r\nContent-Length: 900\r\n\r\ncut",
            OutputError,
            "in the middle of its answer",
        ),
        (b"", OutputError, "closed the connection"),
        (b"nothing of HTTP\r\n", OutputError, "does not speak HTTP"),
    ],
)
def test_a_pushgateway_that_refuses_or_breaks_is_reported(
    secret: Path, answer: bytes, kind: type[CmssparkError], said: str
) -> None:
    with server(http_talk(answer)) as (port, _), pytest.raises(kind) as error:
        Push(
            url=f"http://127.0.0.1:{port}/metrics/job/x", user="me", password_file=str(secret)
        ).send(METRICS)
    assert type(error.value) is kind
    assert said in error.value.text()
    assert PASSWORD not in error.value.text()


def test_a_pushgateway_whose_certificate_nobody_trusts_is_77(
    certificates: Certificates, context: ssl.SSLContext
) -> None:
    def talk(connection: socket.socket, heard: Heard) -> None:
        context.wrap_socket(connection, server_side=True).close()

    with server(talk) as (port, _), pytest.raises(NotAllowed):
        Push(url=f"https://localhost:{port}/metrics/job/x", ca=certificates["other-ca.pem"]).send(
            METRICS
        )


@pytest.mark.parametrize("target", ["mail", "push"])
def test_who_answers_a_letter_at_a_time_is_cut_off_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(config, "DEADLINE_S", 0.3)
    over = threading.Event()

    def talk(connection: socket.socket, heard: Heard) -> None:
        if target == "mail":
            connection.sendall(b"220 here\r\n250-")
        while not over.wait(0.02):
            connection.sendall(b"x")

    with server(talk) as (port, _):
        send = (
            mail(port).send
            if target == "mail"
            else Push(url=f"http://127.0.0.1:{port}/metrics/job/x").send
        )
        try:
            with pytest.raises(OutputError, match="cannot be"):
                send(*(("s", "t") if target == "mail" else (METRICS,)))  # type: ignore[operator]
        finally:
            over.set()


def test_a_metrics_file_is_whole_or_not_there(tmp_path: Path) -> None:
    write_metrics(tmp_path / "m.prom", METRICS)
    assert (tmp_path / "m.prom").read_text() == exposition(METRICS)
    assert exposition(METRICS).splitlines()[:3] == [
        "# HELP cms_exit_code Its exit code.",
        "# TYPE cms_exit_code gauge",
        "cms_exit_code 0.0",
    ]
    with pytest.raises(OutputError):
        write_metrics(tmp_path, METRICS)
    assert [path.name for path in tmp_path.iterdir()] == ["m.prom"]
