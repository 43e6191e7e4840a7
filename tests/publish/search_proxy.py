"""A proxy to an OpenSearch as Grafana has it: below a path, with a token, and nothing
but ``POST _msearch``.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.publish.background_server import BackgroundServer

PREFIX = "/api/datasources/proxy/9999"
#: What comes instead of an answer: status, headers, body; None forwards the request.
Instead = tuple[int, dict[str, str], bytes]


class SearchProxy(BackgroundServer):
    """Forwards to ``url``. ``instead(n)`` may answer request n itself; ``requests`` are
    (method, path, login).
    """

    def __init__(
        self,
        url: str,
        login: str | None,
        instead: Callable[[int], Instead | None],
        context: ssl.SSLContext | None,
    ) -> None:
        self.url, self.login, self.instead = url, login, instead
        self.requests: list[tuple[str, str, str | None]] = []
        super().__init__(_Handler, context)


class _Handler(BaseHTTPRequestHandler):
    server_of_tests: SearchProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        proxy = self.server_of_tests
        body = self.rfile.read(int(self.headers["Content-Length"]))
        number = len(proxy.requests)
        login = self.headers["Authorization"]
        proxy.requests.append(("POST", self.path, login))
        with suppress(OSError):
            self.answer(*(proxy.instead(number) or self.forward(login, body)))

    def do_GET(self) -> None:
        self.server_of_tests.requests.append(("GET", self.path, self.headers["Authorization"]))
        self.answer(403, {}, b"only _msearch")

    def forward(self, login: str | None, body: bytes) -> Instead:
        proxy = self.server_of_tests
        if proxy.login is not None and login != proxy.login:
            return 401, {}, b'{"message":"Unauthorized"}'
        if self.path != f"{PREFIX}/_msearch":
            return 403, {}, b"posts not allowed on proxied datasource except on /_msearch"
        kind = {"Content-Type": self.headers["Content-Type"]}
        request = urllib.request.Request(f"{proxy.url}/_msearch", body, kind, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, {"Content-Type": "application/json"}, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {}, error.read()

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if status == 0:  # silence
            self.close_connection = True
            self.server_of_tests.gate.wait(600)
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


@contextmanager
def search_proxy(
    url: str,
    login: str | None = None,
    instead: Callable[[int], Instead | None] = lambda number: None,
    context: ssl.SSLContext | None = None,
) -> Iterator[SearchProxy]:
    """A running proxy, stopped at the end."""
    made = SearchProxy(url, login, instead, context)
    try:
        yield made
    finally:
        made.stop()
