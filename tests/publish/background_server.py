"""An HTTP server of tests on a free port, in a thread."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BackgroundServer:
    """Serves with ``handler``, whose ``server_of_tests`` is this server. Handlers that
    wait do so until ``gate``.
    """

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None
    ) -> None:
        self.connections = 0
        self.gate = threading.Event()
        tested = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A connection that breaks is what some of these tests are about."""

            def finish_request(self, request: Any, client_address: Any) -> None:
                tested.connections += 1
                if context is not None:
                    request = context.wrap_socket(request, server_side=True)
                with request:
                    super().finish_request(request, client_address)

        self._server = Server(
            ("127.0.0.1", 0), type("Handler", (handler,), {"server_of_tests": self})
        )
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for it."""
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(120)
