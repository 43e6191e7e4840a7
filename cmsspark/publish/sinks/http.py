"""The HTTP sink: a batch is one POST of a JSON array, confirmed by a complete answer with status 2xx.

Python's own client makes the requests: it follows no redirect, keeps no cookie, uses no proxy. Below it lies a socket
with deadlines on every step and on the whole exchange.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from cmsspark import __version__
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.connection import Address, ConnectionLost, addresses, connect, connection_lost
from cmsspark.publish.credentials import Endpoint, read_endpoint
from cmsspark.publish.deadline_socket import DeadlineSocket
from cmsspark.publish.destinations import Destination, folder_of, slug_of
from cmsspark.publish.documents import canonical
from cmsspark.publish.sink import Clock, ForbiddenError, RejectedError, RetryableError, SinkOptions, SystemClock

_NOT_ALLOWED: Final = (401, 403, 407)
#: RejectedError for what is in the request. Other 4xx mean the address or the moment, and no document's fault.
_CONTENT: Final = (400, 409, 413, 422)
#: Answered before anything was accepted.
_NOT_TAKEN: Final = (429, 503)
#: Bytes of an answer that are kept; the rest is read and dropped.
_KEPT: Final = 2_000
_CHUNK: Final = 65_536


@dataclass(frozen=True)
class HttpTimeouts:
    """Deadlines in seconds. ``connect`` for each address with its TLS handshake; ``move``: how long nothing may be
    sent or received; ``whole``: from the first byte of a request to the last of its answer.
    """

    connect: float = 5.0
    move: float = 30.0
    whole: float = 120.0


def read_credentials(path: Path | None) -> Endpoint:
    """The address and login of a credentials file."""
    assert path is not None
    return read_endpoint(path)


def build(credentials: Endpoint, options: SinkOptions) -> HttpSink:
    """The sink that posts to ``credentials``."""
    defaults, settings = HttpTimeouts(), options.settings
    timeouts = replace(defaults, whole=min(defaults.whole, settings.patience))
    return HttpSink(credentials, timeouts, has_metadata=settings.http_metadata, has_top_level=settings.http_top_level)


class HttpSink:
    """Posts to ``endpoint``. Raises as :class:`cmsspark.publish.sink.Sink` documents."""

    def __init__(
        self, endpoint: Endpoint, timeouts: HttpTimeouts | None = None, clock: Clock | None = None,
        now: Callable[[], float] = time.time, *, has_metadata: bool = True, has_top_level: bool = True,
    ) -> None:  # fmt: skip
        """``now``: the wall clock, in seconds since 1970: servers may give a date for the next attempt.

        ``has_metadata``, ``has_top_level``: whether a document has its metadata under that key, and at its top level.
        """
        self._has_metadata, self._has_top_level = has_metadata, has_top_level
        self._endpoint = endpoint
        self._timeouts = timeouts or HttpTimeouts()
        self._clock = clock or SystemClock()
        self._now = now
        self._connection: HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None
        self._failed: dict[Address, float] = {}
        self.where = endpoint.where

    def outbox_name(self, state_dir: Path) -> str:
        """The folder of this path, producer and host, or of the endpoint's ``name``."""
        endpoint = self._endpoint
        destination = Destination("http", endpoint.path, endpoint.producer, (endpoint.host,), endpoint.name)
        slug = slug_of("http", f"{endpoint.host}{endpoint.path}", endpoint.where)
        return folder_of(state_dir, destination, iter((slug,)))

    def open(self) -> None:
        """Connect to the first address that answers; those that failed recently are tried last."""
        host, context, reasons = self._endpoint.host, self._endpoint.tls(), []
        try:
            candidates = addresses(host, self._endpoint.port)
        except ConnectionLost as error:
            raise RetryableError(error.reason) from None
        for family, address in sorted(candidates, key=lambda candidate: self._failed.get(candidate, -1.0)):
            try:
                opened = connect(host, address, family, context, self._timeouts.connect, self._clock)
            except ConnectionLost as error:
                if error.forbidden:
                    raise self._not_allowed(error.reason) from None
                self._failed[family, address] = self._clock.monotonic()
                reasons.append(f"{address[0]}:{address[1]}: {error.reason}")
                continue
            self._failed.pop((family, address), None)
            self._connection = HTTPConnection(host, self._endpoint.port)
            self._connection.auto_open = 0
            self._socket = DeadlineSocket(opened, self._timeouts.move, self._clock)
            self._connection.sock = cast("Any", self._socket)
            return
        raise RetryableError(f"could not connect to any server: {'; '.join(reasons)}")

    def close(self) -> None:
        """Close at once: everything sent was confirmed before."""
        connection, link = self._connection, self._socket
        self._connection = self._socket = None
        if connection is not None and link is not None:
            connection.close()
            link.end()

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        """Nothing is written ahead: a server processes every request that arrives."""

    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Post a batch as one JSON array, and wait for the complete answer."""
        link = self._link()
        link.deadline, link.is_sent = self._clock.monotonic() + self._timeouts.whole, False
        content = b"[" + b",".join(map(self._body, documents)) + b"]"
        try:
            answer, body_text = self._exchange(link, content, meanwhile)
        except (OSError, HTTPException) as error:
            # A server cannot have processed a request before it has received the last byte.
            self.close()
            lost = _lost(error)
            if lost.forbidden:
                raise self._not_allowed(lost.reason, in_doubt=link.is_sent) from None
            raise RetryableError(f"no answer: {lost.reason}", in_doubt=link.is_sent) from None
        if answer.will_close or not 200 <= answer.status < 300:
            self.close()
        self._judge(answer, body_text)

    def _body(self, document: bytes) -> bytes:
        """A document of the spool as the server expects it.

        MONIT's page on HTTP asks for producer and type at the top level; its older form has them under ``metadata``.
        """
        if not self._has_top_level:
            return document
        body = json.loads(document)
        metadata = body.get("metadata", {})
        if not self._has_metadata:
            body.pop("metadata", None)
        return canonical({**body, **metadata})

    def _link(self) -> DeadlineSocket:
        """The connection's socket; opens another where the server closed an idle one."""
        if self._socket is not None and not self._socket.is_idle():
            self.close()
        if self._socket is None:
            self.open()
        assert self._socket is not None
        return self._socket

    def _exchange(self, link: DeadlineSocket, body: bytes, meanwhile: Callable[[], None]) -> tuple[HTTPResponse, bytes]:
        connection = self._connection
        assert connection is not None
        connection.putrequest("POST", self._endpoint.path, skip_host=True, skip_accept_encoding=True)
        headers = {
            "Host": self._endpoint.authority,
            "User-Agent": f"cmsspark/{__version__}",
            "Content-Type": "application/json; charset=UTF-8",
            "Content-Length": str(len(body)),
            "Authorization": self._endpoint.authorization,
        }
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        is_complete = link.post(body)
        meanwhile()
        answer = connection.getresponse()
        kept = answer.read(_KEPT)
        while answer.read(_CHUNK):
            pass
        if answer.length:
            raise IncompleteRead(kept)
        if not is_complete:
            self.close()
            if 200 <= answer.status < 300:
                raise ConnectionError(0, "it answered before it had read the whole request")
        return answer, kept

    def _judge(self, answer: HTTPResponse, body: bytes) -> None:
        """Return when the answer confirms; else raise what it means."""
        status = answer.status
        if 200 <= status < 300:
            return
        reason = f"the server says: {status} {self._summary(answer, body)}".strip()
        if status in _NOT_ALLOWED:
            raise self._not_allowed(reason)
        if status in _CONTENT:
            raise RejectedError(reason)
        if 300 <= status < 400:
            host = self._endpoint.safe_text(urlsplit(answer.headers.get("Location") or "").hostname or "")
            raise RetryableError(f"{reason}: it redirects to {host or 'another path'}, which is not followed")
        raise RetryableError(
            reason,
            in_doubt=status >= 500 and status not in _NOT_TAKEN,
            retry_after=self._retry_after(answer.headers.get("Retry-After")),
        )

    def _summary(self, answer: HTTPResponse, content: bytes) -> str:
        body = " ".join(content.decode("utf-8", errors="replace").split())
        # An error page explains nothing; and an answer may repeat our documents, which must not be logged.
        short = body if body and len(body) <= 200 and not body.startswith("<") else ""
        return self._endpoint.safe_text(f"{answer.reason} {short}")

    def _retry_after(self, header: str | None) -> float:
        """Seconds of a Retry-After header, which is a number or a date; 0 for none and for anything else."""
        text = (header or "").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - self._now())
        except (ValueError, OverflowError):
            return 0.0

    def _not_allowed(self, reason: str, *, in_doubt: bool = False) -> ForbiddenError:
        return ForbiddenError(
            "the server does not let us publish",
            where=self.where,
            found=self._endpoint.safe_text(reason),
            next_step="check user name, password, certificates and producer in the credentials file",
            in_doubt=in_doubt,
        )


def _lost(error: OSError | HTTPException) -> ConnectionLost:
    """The ConnectionLost that describes what ended an exchange."""
    if isinstance(error, RemoteDisconnected):
        return ConnectionLost("the server closed the connection")
    if isinstance(error, IncompleteRead):
        return ConnectionLost("the server closed the connection in the middle of its answer")
    return connection_lost(error) if isinstance(error, OSError) else ConnectionLost("the server does not speak HTTP")
