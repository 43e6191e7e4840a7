"""The endpoint that takes samples of other nodes and stores them: a small HTTP server with a token.

``POST /v1/batches`` with ``Authorization: Bearer TOKEN`` stores a :class:`Batch`; the answer says whether its run
still goes on. ``GET /v1/runs/RUN`` answers the same; ``GET /health`` needs no token. A batch that is sent twice is
stored once.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.errors import CmssparkError, OutputError, SettingsError, UsageError
from cmsspark.readable import readable
from cmsspark.store.process_samples import RUNNING, LogEntry, ProcessSample, WatchedRun, open_processes

DEFAULT_PORT: Final = 8_766
#: Bytes of a request at most.
MOST_BYTES: Final = 8_000_000
BATCHES: Final = "/v1/batches"
_RUN_ID: Final = r"[\w.\-]{1,100}"
_RUN_PATH: Final = re.compile(rf"/v1/runs/({_RUN_ID})", re.ASCII)
#: Bytes of a request that is too large which are read and thrown away, so that its client hears why.
_MOST_DRAINED: Final = 4 * MOST_BYTES
_SHORTEST_TOKEN: Final = 16


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Samples of one host for a run. ``run`` is stored where the collector does not know it yet."""

    run: WatchedRun
    samples: list[ProcessSample] = []
    log: list[LogEntry] = []


class Stored(msgspec.Struct):
    """The answer. ``status``: of the run; when it is no longer RUNNING, the node's monitor ends."""

    stored: int
    status: str


class Collector:
    """A server that stores batches in the database of ``state_dir``; :meth:`start` serves from a thread."""

    def __init__(
        self, state_dir: Path, token: str, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        if len(token) < _SHORTEST_TOKEN:
            raise SettingsError(
                f"a token has at least {_SHORTEST_TOKEN} characters",
                found=f"{len(token)} characters",
                next_step="make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )
        self.state_dir, self.token, self.tls = state_dir, token, tls
        self.lock = threading.Lock()
        with open_processes(state_dir):
            pass  # a database that cannot be written is told now
        try:
            self.server = _Server((host, port), _Handler)
        except OSError as error:
            raise OutputError(
                "the collector needs a free address",
                where=f"{host}:{port}",
                found=error.strerror,
                next_step="give another --port, or 0 for any",
            ) from None
        self.server.collector = self
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address that nodes send to."""
        host, port = self.server.server_address[:2]
        return f"{'https' if self.tls else 'http'}://{host!s}:{port}"

    def start(self) -> None:
        """Serve from a thread until :meth:`close`."""
        self._thread = threading.Thread(target=self.run, daemon=True, name="collector")
        self._thread.start()

    def run(self) -> None:
        """Serve until :meth:`close` is called."""
        self.server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """End; requests that are being answered are answered."""
        if self._thread is not None:
            self.server.shutdown()
            self._thread.join(10)
        self.server.server_close()

    def store(self, batch: Batch) -> Stored:
        """Store a batch."""
        _check(batch)
        names = {*(one.run for one in batch.samples), *(one.run for one in batch.log)} - {batch.run.run}
        if names:
            raise UsageError("a batch has samples of one run", found=f"{batch.run.run} and {min(names)}")
        # SQLite has one writer at a time; waiting here is cheaper than there.
        with self.lock, open_processes(self.state_dir) as database:
            runs = {run.run: run for run in database.runs()}
            known = runs.get(batch.run.run)
            if known is None:
                known = batch.run
                database.prune()
                database.put_run(known)
            elif known.job == "node" and known.host == batch.run.host and batch.run.end_ms:
                # The node's own run: it says itself when it ends.
                known = batch.run
                database.put_run(known)
            database.add(batch.samples, batch.log)
        return Stored(len(batch.samples), known.status)

    def status_of(self, run: str) -> str | None:
        """The state of a run; None for one that is not known."""
        with open_processes(self.state_dir) as database:
            return next((one.status for one in database.runs() if one.run == run), None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64
    collector: Collector

    def get_request(self) -> tuple[socket.socket, Any]:
        opened, address = super().get_request()
        opened.settimeout(30)
        return opened, address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The handshake takes place in the thread of the connection: a client that is silent holds up nobody.
        if self.collector.tls is not None:
            try:
                request = self.collector.tls.wrap_socket(request, server_side=True)
            except (OSError, ValueError):
                self.shutdown_request(request)
                return
        super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the client's matter: it sends again."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "cmsspark"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"status": "ok"})
        elif not self._is_allowed():
            self._answer(401, {"error": "the token is missing or wrong"})
        elif match := _RUN_PATH.fullmatch(self.path):
            self._guarded(lambda: self._state_of(match[1]))
        else:
            self._answer(404, {"error": "there is no such address"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self._refuse(411, "a request says its length")
        elif len(length) > 12 or int(length) > MOST_BYTES:
            self._refuse(413, f"a request has at most {MOST_BYTES:,} bytes")
            self._drain(int(length[:12]))
        elif not self._is_allowed():
            self._refuse(401, "the token is missing or wrong")
        elif self.path != BATCHES:
            self._refuse(404, "there is no such address")
        else:
            body = self.rfile.read(int(length))
            self._guarded(lambda: self._take(body))

    def _take(self, body: bytes) -> None:
        try:
            batch = msgspec.json.decode(body, type=Batch)
        except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
            self._answer(400, {"error": f"no batch: {error}"})
            return
        self._answer(200, self.server.collector.store(batch))

    def _state_of(self, run: str) -> None:
        status = self.server.collector.status_of(run)
        self._answer(200 if status else 404, {"status": status or "UNKNOWN"})

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except UsageError as error:
            self._answer(400, {"error": str(error)})
        except CmssparkError as error:
            # The node keeps its batch and sends it again.
            self._answer(503, {"error": str(error)})

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(given, f"Bearer {self.server.collector.token}".encode())

    def _refuse(self, status: int, text: str) -> None:
        # What comes after is not read: the connection cannot be used again.
        self.close_connection = True
        self._answer(status, {"error": text})

    def _drain(self, count: int) -> None:
        left = min(count, _MOST_DRAINED)
        with suppress(OSError):
            while left > 0 and (read := len(self.rfile.read(min(left, 1 << 16)))):
                left -= read

    def _answer(self, status: int, document: Any) -> None:
        body = msgspec.json.encode(document)
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: each node sends a request every ten seconds."""


def _check(batch: Batch) -> None:
    """Raises UsageError for a run that no address can name, and for numbers that no column takes."""
    if not re.fullmatch(_RUN_ID, batch.run.run, re.ASCII):
        raise UsageError("the id of a run has letters, digits and _.-, at most 100", found=repr(batch.run.run[:100]))
    for row in (batch.run, *batch.samples, *batch.log):
        for name, value in zip(row.__struct_fields__, msgspec.structs.astuple(row), strict=True):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise UsageError("a whole number has 64 bits", where=name, found=f"one of {value.bit_length()} bits")


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with a certificate; None without one. Raises SettingsError (78), NotAllowed (77)."""
    if certificate is None:
        return None
    from cmsspark.secrets import open_private

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        with open_private(key or certificate, "a file with a private key") as stream:
            context.load_cert_chain(certificate, f"/dev/fd/{stream.fileno()}", password=lambda: "")
    except ssl.SSLError as error:
        raise SettingsError(
            "a certificate and its key must be in PEM form, without a pass phrase",
            where=certificate,
            found=readable(error.reason or str(error)),
        ) from None
    except OSError as error:
        raise SettingsError("a certificate file cannot be read", where=certificate, found=error.strerror) from None
    return context


def check_address(host: str, has_tls: bool, is_plain_allowed: bool) -> None:
    """Raises UsageError (2) for an address that others reach without TLS: the token would travel as it is."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host == "localhost" or has_tls or is_plain_allowed:
        return
    raise UsageError(
        "an address that other hosts reach needs TLS: the token would travel as it is",
        where=f"--host {host}",
        next_step="give --tls-cert and --tls-key, a tunnel to 127.0.0.1, or --without-tls in a network that you trust",
    )


def is_over(status: str) -> bool:
    """Whether a state says that the run has ended."""
    return status != RUNNING
