"""The HTTP sink: a batch is one POST of a JSON array, confirmed by a whole answer with a status of 2xx.

Python's own client makes the requests: it follows no redirect, keeps no cookie, asks no proxy. Below it lies a socket
with deadlines on every step and on the whole exchange.
"""

from __future__ import annotations

import hashlib
import io
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from typing import Any, Final, cast
from urllib.parse import urlsplit

from cmsspark import __version__
from cmsspark.errors import NotAllowed
from cmsspark.publish.credentials import Endpoint
from cmsspark.publish.dial import Address, LinkDown, addresses, await_ready, dial, down
from cmsspark.publish.ledger import Batch
from cmsspark.publish.sink import Clock, Refused, SystemClock, Unconfirmed

_NOT_ALLOWED: Final = (401, 403, 407)
#: Refused for what is in the request. Other 4xx mean the address or the moment, and no document's fault.
_CONTENT: Final = (400, 409, 413, 422)
#: Answered before anything was taken in.
_NOT_TAKEN: Final = (429, 503)
#: Bytes of an answer that are looked at; the rest is only waited for.
_KEPT: Final = 2_000
_CHUNK: Final = 65_536


@dataclass(frozen=True)
class Timeouts:
    """Deadlines in seconds. ``connect`` for each address with its TLS handshake; ``move``: how long nothing may be
    taken or come; ``whole``: from the first byte of a request to the last of its answer.
    """

    connect: float = 5.0
    move: float = 30.0
    whole: float = 120.0


class HttpSink:
    """Posts to ``endpoint``. Raises as :class:`cmsspark.publish.sink.Sink` says."""

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts | None = None, clock: Clock | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """``now``: the wall clock, in seconds since 1970: servers may say in dates when to come again."""
        self._endpoint = endpoint
        self._timeouts = timeouts or Timeouts()
        self._clock = clock or SystemClock()
        self._now = now
        self._connection: HTTPConnection | None = None
        self._socket: _Timed | None = None
        self._failed: dict[Address, float] = {}
        self.where = endpoint.where
        plain = re.sub(r"[^A-Za-z0-9.-]", "-", f"{endpoint.host}{endpoint.path}")
        self.slug = f"http-{plain}-{hashlib.sha256(endpoint.where.encode()).hexdigest()[:8]}"

    def open(self) -> None:
        """Connect to one address after another: those that failed lately come last."""
        host, context, reasons = self._endpoint.host, self._endpoint.tls(), []
        try:
            found = addresses(host, self._endpoint.port)
        except LinkDown as error:
            raise Unconfirmed(error.reason) from None
        for family, address in sorted(found, key=lambda one: self._failed.get(one, -1.0)):
            try:
                opened = dial(host, address, family, context, self._timeouts.connect, self._clock)
            except LinkDown as error:
                if error.forbidden:
                    raise self._not_allowed(error.reason) from None
                self._failed[family, address] = self._clock.monotonic()
                reasons.append(f"{address[0]}:{address[1]}: {error.reason}")
                continue
            self._failed.pop((family, address), None)
            self._connection = HTTPConnection(host, self._endpoint.port)
            self._connection.auto_open = 0
            self._socket = _Timed(opened, self._timeouts.move, self._clock)
            self._connection.sock = cast(Any, self._socket)
            return
        raise Unconfirmed(f"no server takes us: {'; '.join(reasons)}")

    def close(self) -> None:
        """Close at once: what was sent was confirmed before."""
        connection, link = self._connection, self._socket
        self._connection = self._socket = None
        if connection is not None and link is not None:
            connection.close()
            link.end()

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        """Nothing is written ahead: a request that is there is taken in."""

    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Post a batch as one JSON array, and wait for the whole answer."""
        link = self._link()
        link.deadline, link.is_out = self._clock.monotonic() + self._timeouts.whole, False
        body = b"[" + b",".join(documents) + b"]"
        try:
            answer, said = self._exchange(link, body, meanwhile)
        except (OSError, HTTPException) as error:
            # Until its last byte was taken no server can have made anything of a request.
            self.close()
            trouble = _trouble(error)
            if trouble.forbidden:
                raise self._not_allowed(trouble.reason) from None
            raise Unconfirmed(f"no answer: {trouble.reason}", in_doubt=link.is_out) from None
        if answer.will_close or not 200 <= answer.status < 300:
            self.close()
        self._judge(answer, said)

    def _link(self) -> _Timed:
        """The connection's socket. A server may close one that was idle: then there is another, and no harm done."""
        if self._socket is not None and not self._socket.is_idle():
            self.close()
        if self._socket is None:
            self.open()
        assert self._socket is not None
        return self._socket

    def _exchange(self, link: _Timed, body: bytes, meanwhile: Callable[[], None]) -> tuple[HTTPResponse, bytes]:
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
        is_whole = link.post(body)
        meanwhile()
        answer = connection.getresponse()
        said = answer.read(_KEPT)
        while answer.read(_CHUNK):
            pass
        if answer.length:
            raise IncompleteRead(said)
        if not is_whole:
            self.close()
            if 200 <= answer.status < 300:
                raise ConnectionError(0, "it answered before it had read all")
        return answer, said

    def _judge(self, answer: HTTPResponse, said: bytes) -> None:
        """What an answer means. Returns when it confirms."""
        status = answer.status
        if 200 <= status < 300:
            return
        reason = f"the server says: {status} {self._words(answer, said)}".strip()
        if status in _NOT_ALLOWED:
            raise self._not_allowed(reason)
        if status in _CONTENT:
            raise Refused(reason)
        if 300 <= status < 400:
            place = urlsplit(answer.headers.get("Location") or "")
            raise Unconfirmed(f"{reason}: it sends us to {place.hostname or 'another path'}, which is not followed")
        raise Unconfirmed(
            reason,
            in_doubt=status >= 500 and status not in _NOT_TAKEN,
            retry_after=self._retry_after(answer.headers.get("Retry-After")),
        )

    def _words(self, answer: HTTPResponse, said: bytes) -> str:
        body = " ".join(said.decode("utf-8", errors="replace").split())
        # An error page is no reason; and an answer may repeat our documents, which are no one's to log.
        short = body if body and len(body) <= 200 and not body.startswith("<") else ""
        text = f"{answer.reason} {short}"
        return self._endpoint.without_secrets("".join(c if c.isprintable() else " " for c in text))[:300].strip()

    def _retry_after(self, given: str | None) -> float:
        """Seconds of a Retry-After header: a number or a date; 0 for none and for what is neither."""
        text = (given or "").strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - self._now())
        except (ValueError, OverflowError):
            return 0.0

    def _not_allowed(self, reason: str) -> NotAllowed:
        return NotAllowed(
            "the server does not let us publish",
            where=self.where,
            found=self._endpoint.without_secrets(reason),
            next_step="check user name, password, certificates and producer in the credentials file",
        )


def _trouble(error: OSError | HTTPException) -> LinkDown:
    """What ended an exchange."""
    if isinstance(error, RemoteDisconnected):
        return LinkDown("the server closed the connection")
    if isinstance(error, IncompleteRead):
        return LinkDown("the server closed the connection in the middle of its answer")
    return down(error) if isinstance(error, OSError) else LinkDown("what answers there speaks no HTTP")


class _Timed:
    """The few things that HTTPConnection asks of a socket, each ended by a deadline.

    ``deadline``: of the whole exchange; ``is_out``: the last byte of the request was taken.
    """

    def __init__(self, connection: socket.socket, move: float, clock: Clock) -> None:
        self.deadline = clock.monotonic() + move
        self.is_out = False
        self._head = bytearray()
        self._early = b""
        self._error: OSError | None = None
        self._connection = connection
        self._move = move
        self._clock = clock

    def sendall(self, data: bytes) -> None:
        """Keep the head of a request, to be written with its body."""
        self._head += data

    def post(self, body: bytes) -> bool:
        """Write head and body; False when the other side says something before it has all: it refuses.

        Raises OSError when nothing moves, or the whole takes too long.
        """
        view = memoryview(bytes(self._head) + body)
        self._head.clear()
        until = self._until()
        while view:
            if not self.is_idle():
                return False
            try:
                view = view[self._connection.send(view[:_CHUNK]) :]
                until = self._until()
            except ssl.SSLWantReadError:
                await_ready(self._connection, select.POLLIN, until, self._clock)
            except (BlockingIOError, ssl.SSLWantWriteError):
                # Who refuses may answer and read no further.
                await_ready(self._connection, select.POLLOUT | select.POLLIN, until, self._clock)
        self.is_out = True
        return True

    def receive(self, buffer: Any) -> int:
        """Read what is there, at least a byte, or 0 at the end."""
        if self._early:
            piece, self._early = self._early[: len(buffer)], self._early[len(buffer) :]
            buffer[: len(piece)] = piece
            return len(piece)
        if self._error is not None:
            raise self._error
        return self._once(partial(self._connection.recv_into, buffer))

    def is_idle(self) -> bool:
        """Whether nothing lies here unread: neither an end nor bytes. Looks, and does not wait."""
        if not self._early:
            try:
                # Not poll(): under TLS what came may be no more than the server's tickets.
                self._early = self._connection.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            except OSError as error:
                self._error = error  # may say why, and would not come twice
        return False

    def _until(self) -> float:
        """When something must have moved."""
        return min(self.deadline, self._clock.monotonic() + self._move)

    def _once(self, read: Callable[[], int]) -> int:
        until = self._until()
        while True:
            try:
                return read()
            except (BlockingIOError, ssl.SSLWantReadError):
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            await_ready(self._connection, wanted, until, self._clock)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What the answer is read from."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """The client is done with it, perhaps before the answer's body was read: :meth:`end` closes it."""

    def end(self) -> None:
        """Close the socket."""
        self._connection.close()


class _Reader(io.RawIOBase):
    def __init__(self, link: _Timed) -> None:
        self._link = link

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Bytes of the answer."""
        return self._link.receive(buffer)
