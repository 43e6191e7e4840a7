"""A proxy to an OpenSearch as Grafana has it: below a path, with a token, and nothing but ``POST _msearch``."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFIX = "/api/datasources/proxy/9999"
#: What comes instead of an answer: status, headers, body; None forwards the request.
Instead = tuple[int, dict[str, str], bytes]


class SearchProxy:
    """Forwards to ``url``. ``instead(n)`` may answer request n itself; ``requests`` are (method, path, login)."""

    def __init__(
        self, url: str, login: str | None, instead: Callable[[int], Instead | None], context: ssl.SSLContext | None
    ) -> None:
        self.url, self.login, self.instead = url, login, instead
        self.requests: list[tuple[str, str, str | None]] = []
        self.gate = threading.Event()
        proxy = self

        class Handler(_Handler):
            proxy_of_tests = proxy

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that leaves is what some of these tests are about."""

            def finish_request(self, request: Any, client_address: Any) -> None:
                if context is not None:
                    request = context.wrap_socket(request, server_side=True)
                with request:
                    super().finish_request(request, client_address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for it."""
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    proxy_of_tests: SearchProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        proxy = self.proxy_of_tests
        body = self.rfile.read(int(self.headers["Content-Length"]))
        number = len(proxy.requests)
        login = self.headers["Authorization"]
        proxy.requests.append(("POST", self.path, login))
        with suppress(OSError):
            self.say(*(proxy.instead(number) or self.forward(login, body)))

    def do_GET(self) -> None:
        self.proxy_of_tests.requests.append(("GET", self.path, self.headers["Authorization"]))
        self.say(403, {}, b"only _msearch")

    def forward(self, login: str | None, body: bytes) -> Instead:
        proxy = self.proxy_of_tests
        if proxy.login is not None and login != proxy.login:
            return 401, {}, b'{"message":"Unauthorized"}'
        if self.path != f"{PREFIX}/_msearch":
            return 403, {}, b"posts not allowed on proxied datasource except on /_msearch"
        kind = {"Content-Type": self.headers["Content-Type"]}
        request = urllib.request.Request(f"{proxy.url}/_msearch", body, kind, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, {"Content-Type": "application/json"}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {}, error.read()

    def say(self, status: int, headers: dict[str, str], body: bytes) -> None:
        if status == 0:  # silence
            self.close_connection = True
            self.proxy_of_tests.gate.wait(30)
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
