"""An HTTP server that fails on demand, and keeps what it confirmed."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.publish.background_server import BackgroundServer


@dataclass
class Answer:
    """How one request is answered; the default takes it in and says so."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"ok":true}'
    takes: bool | None = (
        None  # whether the documents are kept; without a word: when the status is 2xx
    )
    instead: str = ""  # reset, close, silent, drip, short, early, garbage
    poison: Callable[[dict[str, Any]], bool] | None = None  # 400 for requests with such a document


@dataclass
class Request:
    """What came."""

    path: str
    headers: dict[str, str]
    body: bytes


class FakeServer(BackgroundServer):
    """Request n is answered by ``answers[n]``; those after the list by ``last``.
    ``stored``: documents taken in.
    """

    def __init__(
        self, answers: list[Answer], last: Answer, context: ssl.SSLContext | None
    ) -> None:
        self.answers, self.last = answers, last
        self.stored: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.get_answer = Answer()
        self._lock = threading.Lock()
        super().__init__(_Handler, context)

    def next(self, request: Request) -> Answer:
        """The answer to ``request``; keeps its documents where that says so."""
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            answer = self.answers[number] if number < len(self.answers) else self.last
            documents = json.loads(request.body) if request.body else []
            if answer.poison is not None and any(
                answer.poison(document) for document in documents
            ):
                return Answer(400, body=b"a document does not fit")
            if answer.takes if answer.takes is not None else 200 <= answer.status < 300:
                self.stored.extend(documents)
            return answer


class _Handler(BaseHTTPRequestHandler):
    server_of_tests: FakeServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        fake = self.server_of_tests
        if fake.answers and fake.answers[0].instead == "early" and not fake.requests:
            answer = fake.next(Request(self.path, dict(self.headers), b""))
            self.say(answer)
            fake.gate.wait(600)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(fake.next(Request(self.path, dict(self.headers), body)))

    def reply(self, answer: Answer) -> None:
        """Answer, or fail as that says."""
        if answer.instead:
            self.close_connection = True
            with suppress(OSError):
                getattr(self, answer.instead)(answer)
        else:
            self.say(answer)

    def do_GET(self) -> None:
        """A redirect that is followed shows itself."""
        self.server_of_tests.requests.append(Request(f"GET {self.path}", dict(self.headers), b""))
        self.reply(self.server_of_tests.get_answer)

    def say(self, answer: Answer, length: int | None = None) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if length is None else length))
        self.end_headers()
        self.wfile.write(answer.body)

    def reset(self, answer: Answer) -> None:
        """The connection is reset: no close that TCP would finish."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def close(self, answer: Answer) -> None:
        """The connection ends without an answer."""

    def silent(self, answer: Answer) -> None:
        """Nothing comes."""
        self.server_of_tests.gate.wait(600)

    def drip(self, answer: Answer) -> None:
        """A body of which a byte comes now and then, never all."""
        self.say(answer, length=10_000)
        while not self.server_of_tests.gate.wait(0.05):
            self.wfile.write(b" ")
            self.wfile.flush()

    def short(self, answer: Answer) -> None:
        """An answer that ends before its end."""
        self.say(answer, length=len(answer.body) + 7)

    def garbage(self, answer: Answer) -> None:
        """No HTTP."""
        self.wfile.write(b"CONNECTED\nversion:1.2\n\n\0\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


@contextmanager
def http_server(
    *answers: Answer, last: Answer | None = None, context: ssl.SSLContext | None = None
) -> Iterator[FakeServer]:
    """A server whose requests are answered by ``answers``, one after another; stopped at the end."""
    made = FakeServer(list(answers), last or Answer(), context)
    try:
        yield made
    finally:
        made.stop()
