"""The endpoint that takes samples of other nodes and stores them: a small HTTP server
with a token.

``POST /v1/batches`` with ``Authorization: Bearer TOKEN`` stores a :class:`Batch`; the
answer has the state of its run. ``GET /v1/runs/RUN`` answers the same; ``GET /health``
needs no token. A batch that is sent twice is stored once. Beside its batches a monitor
sends its clock and its machine, so that mix-ups can be seen: a node whose clock differs
from the collector's is noted in the log of the run (type ``clock``), and its samples are
shifted by that where they are compared with the times of steps.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, OutputError, SettingsError, UsageError
from cmsspark.base.text.readable import readable
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, open_processes

#: Headers of a request: the sender's clock when it sends, UTC ms; the id of its kernel's boot.
SENT_MS: Final = "Cmsspark-Sent-Ms"
BOOT: Final = "Cmsspark-Boot"
#: The type of log entries with the difference of a clock.
CLOCK: Final = "clock"
#: Smaller differences of clocks may be the time that the network takes.
_LEAST_SKEW_MS: Final = 5_000
_CLOCK_TEXT: Final = re.compile(r"([+\-]\d+) ms .*", re.DOTALL)
_SHORTEST_TOKEN: Final = 16
_NODE_NAME: Final = re.compile(r"[\w.\-]{1,100}", re.ASCII)


def check_token(token: str) -> None:
    """Raises SettingsError (78) for a token that is short, or that a header cannot carry."""
    make = "make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
    if len(token) < _SHORTEST_TOKEN:
        raise SettingsError(
            f"a token has at least {_SHORTEST_TOKEN} characters",
            found=f"{len(token)} characters",
            next_step=make,
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise SettingsError(
            "a token has ASCII letters, digits and signs only",
            found="blanks or other characters",
            next_step=make,
        )


def check_node_name(name: str) -> None:
    """Raises UsageError (2) for a name of a node that has other characters than those
    of host names.
    """
    if not _NODE_NAME.fullmatch(name):
        raise UsageError("--name has letters, digits and _.-, at most 100", found=repr(name[:100]))


def check_rows(rows: Iterable[msgspec.Struct]) -> None:
    """Raises UsageError for numbers that no column takes."""
    for row in rows:
        for name, value in zip(row.__struct_fields__, msgspec.structs.astuple(row), strict=True):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise UsageError(
                    "a whole number has 64 bits",
                    where=name,
                    found=f"one of {value.bit_length()} bits",
                )


def boot_id() -> str:
    """Return the id of this kernel's boot, which no two machines share; nothing where
    the system has none.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


class SenderHeaders(NamedTuple):
    """The sender of a request by its headers, and when these arrived by the collector's
    clock, UTC ms.
    """

    received_ms: int
    sent_ms: str | None = None
    boot: str | None = None


class SenderNotes:
    """Which machine and which clock sends for a run under the name of a host; notes for
    the run's log.
    """

    def __init__(self) -> None:
        self._boots: dict[tuple[str, str], set[str]] = {}
        self._skews: dict[tuple[str, str], int] = {}

    def entries(self, run: str, host: str, sender: SenderHeaders) -> list[LogEntry]:
        """Return what is new about the sender of a batch."""
        now_ms, sent_ms, boot = sender
        entries = []
        boots = self._boots.setdefault((run, host), set())
        if (
            boot
            and re.fullmatch(r"[0-9a-f\-]{1,40}", boot)
            and boot not in boots
            and len(boots) < 10
        ):
            boots.add(boot)
            if len(boots) > 1:
                text = f"{len(boots)} machines send as {host}: start their monitors with --name, each its own"
                entries.append(LogEntry(run, now_ms, "error", text, host))
        if sent_ms is not None and re.fullmatch(r"\d{1,15}", sent_ms, re.ASCII):
            skew = now_ms - int(sent_ms)
            before = self._skews.get((run, host), 0)
            if abs(skew) <= _LEAST_SKEW_MS:
                skew = 0
            if abs(skew - before) > _LEAST_SKEW_MS:
                self._skews[run, host] = skew
                text = f"{skew:+d} ms to add to the times of {host}: its clock differs from the collector's"
                entries.append(LogEntry(run, now_ms, CLOCK, text, host))
        return entries


def with_one_clock(
    samples: Sequence[ProcessSample], log: Iterable[LogEntry]
) -> list[ProcessSample]:
    """Return the samples in the order of times by the collector's clock, with the last
    note on each host.
    """
    skews = {}
    for entry in log:
        if entry.type == CLOCK and (match := _CLOCK_TEXT.fullmatch(entry.message)):
            skews[entry.host] = int(match[1])
    if not skews:
        return list(samples)
    shifted = [
        msgspec.structs.replace(sample, time_ms=sample.time_ms + skews.get(sample.host, 0))
        for sample in samples
    ]
    return sorted(shifted, key=lambda sample: (sample.time_ms, sample.host, sample.pid))


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with a certificate; None without one. Raises SettingsError (78),
    NotAllowed (77).
    """
    if certificate is None:
        return None
    from cmsspark.settings.secrets import open_private

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
        raise SettingsError(
            "a certificate file cannot be read", where=certificate, found=error.strerror
        ) from None
    return context


def check_address(host: str, has_tls: bool, is_plain_allowed: bool) -> None:
    """Raises UsageError (2) for an address that others reach without TLS: the token
    would travel as it is.
    """
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


#: Bytes of a request at most.
MOST_BYTES: Final = 8_000_000
BATCHES: Final = "/v1/batches"
_RUN_ID: Final = r"[\w.\-]{1,100}"
_RUN_PATH: Final = re.compile(rf"/v1/runs/({_RUN_ID})", re.ASCII)
#: Bytes of a request that is too large which are read and discarded, so that its client
#: reads the answer.
_MOST_DRAINED: Final = 4 * MOST_BYTES
#: Seconds in which the body of a request arrives.
_BODY_SECONDS: Final = 60.0


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
    """A server that stores batches in the database of ``state_dir``; :meth:`start`
    serves from a thread.
    """

    def __init__(
        self,
        state_dir: Path,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_token(token)
        self.state_dir, self.token, self.tls = state_dir, token, tls
        self.body_seconds = _BODY_SECONDS
        self.lock = threading.Lock()
        self._notes = SenderNotes()
        with open_processes(state_dir):
            pass  # a database that cannot be written ends the start
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

    def store(self, batch: Batch, sender: SenderHeaders) -> Stored:
        """Store a batch, and what is new about its sender."""
        _check(batch)
        names = {*(entry.run for entry in batch.samples), *(entry.run for entry in batch.log)} - {
            batch.run.run
        }
        if names:
            raise UsageError(
                "a batch has samples of one run", found=f"{batch.run.run} and {min(names)}"
            )
        # SQLite has one writer at a time; waiting here is cheaper than there.
        with self.lock, open_processes(self.state_dir) as database:
            runs = {run.run: run for run in database.runs()}
            stored = runs.get(batch.run.run)
            if stored is None:
                stored = batch.run
                database.prune()
                database.put_run(stored)
            elif stored.job == "node" and stored.host == batch.run.host and batch.run.end_ms:
                # The node's own run: the node sends its end.
                stored = batch.run
                database.put_run(stored)
            notes = self._notes.entries(stored.run, batch.run.host, sender)
            database.add(batch.samples, [*batch.log, *notes])
        return Stored(len(batch.samples), stored.status)

    def read_status(self, run: str) -> str | None:
        """Return the state of a run; None for one that is not known."""
        with open_processes(self.state_dir) as database:
            return next((entry.status for entry in database.runs() if entry.run == run), None)


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
        # The handshake takes place in the thread of the connection: a client that is
        # silent holds up nobody.
        if self.collector.tls is not None:
            try:
                request = self.collector.tls.wrap_socket(request, server_side=True)
            except (OSError, ValueError):
                self.shutdown_request(request)
                return
        super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection: the client sends again."""


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
            self._guarded(lambda: self._answer_status(match[1]))
        else:
            self._answer(404, {"error": "there is no such address"})

    def do_POST(self) -> None:
        # Before the body is read, which may take its time.
        sender = SenderHeaders(dates.now_ms(), self.headers.get(SENT_MS), self.headers.get(BOOT))
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers:
            # With both a body may end in two places.
            self._refuse(411, "a request needs a Content-Length, and no Transfer-Encoding")
        elif not length.isascii() or not length.isdigit():
            self._refuse(411, "a request needs a Content-Length")
        elif len(length) > 12 or int(length) > MOST_BYTES:
            self._refuse(413, f"a request has at most {MOST_BYTES:,} bytes")
            self._drain(int(length[:12]))
        elif refusal := self._refusal():
            self._refuse(*refusal)
            self._drain(int(length))
        elif (body := self._body(int(length))) is None:
            self._refuse(408, f"a request arrives in {self.server.collector.body_seconds:g} s")
        else:
            self._guarded(lambda: self._take(body, sender))

    def _refusal(self) -> tuple[int, str] | None:
        """Return why a request with a body of an allowed length is not read; None where it is."""
        if not self._is_allowed():
            return 401, "the token is missing or wrong"
        if self.path != BATCHES:
            return 404, "there is no such address"
        if self.headers.get_content_type() != "application/json":
            return 415, "a batch has the Content-Type application/json"
        return None

    def _body(self, count: int) -> bytes | None:
        """Return the body; None where it takes too long or ends early."""
        end = time.monotonic() + self.server.collector.body_seconds
        parts = []
        while count > 0:
            try:
                part = self.rfile.read1(min(count, 1 << 16))
            except TimeoutError:
                return None
            if not part or time.monotonic() > end:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _take(self, body: bytes, sender: SenderHeaders) -> None:
        try:
            batch = msgspec.json.decode(body, type=Batch)
        except (
            msgspec.ValidationError,
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
        ) as error:
            self._answer(400, {"error": f"no batch: {error}"})
            return
        self._answer(200, self.server.collector.store(batch, sender))

    def _answer_status(self, run: str) -> None:
        status = self.server.collector.read_status(run)
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
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        expected = self.server.collector.token.encode()
        is_equal = hmac.compare_digest(token.strip().encode("latin-1", "replace"), expected)
        return scheme.lower() == "bearer" and is_equal

    def _refuse(self, status: int, text: str) -> None:
        # What comes after is not read: the connection cannot be used again.
        self.close_connection = True
        self._answer(status, {"error": text})

    def _drain(self, count: int) -> None:
        remaining = min(count, _MOST_DRAINED)
        end = time.monotonic() + self.server.collector.body_seconds
        with suppress(OSError):
            while (
                remaining > 0
                and time.monotonic() < end
                and (read := len(self.rfile.read1(min(remaining, 1 << 16))))
            ):
                remaining -= read

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
        raise UsageError(
            "the id of a run has letters, digits and _.-, at most 100",
            found=repr(batch.run.run[:100]),
        )
    check_rows((batch.run, *batch.samples, *batch.log))
