"""The HTTP client of all that sends or asks: every step and each exchange has a
deadline, each answer a limit.

Python's own client makes the requests: it follows no redirect, keeps no cookie, uses no
proxy. Below it lies a socket with deadlines on every step and on the whole exchange: no
timeout of a library ends an answer that drips.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, Final, Self, cast

import msgspec

from cmsspark import __version__
from cmsspark.base.dates import Clock, SystemClock
from cmsspark.base.sockets import (
    Address,
    ConnectionLost,
    DeadlineSocket,
    addresses,
    connect,
    connection_lost,
)
from cmsspark.settings.secrets import safe_text, tls_context

_CHUNK: Final = 65_536
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~:@%=+,-]*)*(?:\?[A-Za-z0-9._~:@%=+,/&-]*)?)"
)


class HttpAddress(msgspec.Struct, frozen=True):
    """``host``, ``port``, ``path`` of the URL, and whether it uses TLS. Its text form
    shows no secret.

    ``ca``, ``cert`` and ``key``: files in PEM; None for the system's authorities, and
    for no certificate of the client. ``authorization``: the value of that header, or
    None without a login. ``secrets``: what no text may show of it, the longest first.
    """

    host: str
    port: int
    path: str
    is_secure: bool
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    authorization: str | None = None
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}>"

    @property
    def authority(self) -> str:
        """``host:port`` as URLs write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def where(self) -> str:
        """The address for people."""
        return f"{'https' if self.is_secure else 'http'}://{self.authority}{self.path}"

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS. Raises as
        :func:`cmsspark.settings.secrets.tls_context`.
        """
        return tls_context(self.ca, self.cert, self.key) if self.is_secure else None

    def safe_text(self, text: str) -> str:
        """Make a server's text safe for terminals and logs, without the secrets of the login."""
        return safe_text(text, *self.secrets)

    @property
    def is_exposed(self) -> bool:
        """Whether others could read what is sent: without TLS, to another host than this one."""
        return not self.is_secure and self.host not in LOOPBACK

    @classmethod
    def from_url(cls, url: str, **fields: Any) -> Self:
        """Return the address of ``http[s]://HOST[:PORT][/PATH][?QUERY]`` with more fields.

        Raises ValueError for anything else, such as a password in it; its text does not
        repeat the URL.
        """
        match = _URL.fullmatch(url)
        is_secure = match is not None and match["scheme"] == "https"
        port = int((match and match["port"]) or (443 if is_secure else 80))
        if match is None or not 0 < port < 65_536:
            raise ValueError("http://HOST:PORT/PATH or https://HOST:PORT/PATH")
        return cls(match["host"].strip("[]").lower(), port, match["path"], is_secure, **fields)


class HttpTimeouts(msgspec.Struct, frozen=True):
    """Deadlines in seconds. ``connect`` for each address with its TLS handshake;
    ``move``: how long nothing may be sent or received; ``whole``: from the first byte
    of a request to the last of its answer.
    """

    connect: float = 5.0
    move: float = 30.0
    whole: float = 120.0


class HttpAnswer(msgspec.Struct, frozen=True):
    """A complete answer. ``body``: as much of it as was to be kept; ``is_cut``: there was more."""

    status: int
    reason: str
    headers: Message
    body: bytes
    is_cut: bool = False

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class HttpLost(ConnectionLost):
    """An exchange without a complete answer. ``is_sent``: the server may have the whole request."""

    def __init__(self, reason: str, *, forbidden: bool = False, is_sent: bool = False) -> None:
        super().__init__(reason, forbidden=forbidden)
        self.is_sent = is_sent


class HttpClient:
    """One connection to ``server``, opened when it is needed and again after it was lost."""

    def __init__(
        self, server: HttpAddress, timeouts: HttpTimeouts | None = None, clock: Clock | None = None
    ) -> None:
        self._server = server
        self._timeouts = timeouts or HttpTimeouts()
        self._clock = clock or SystemClock()
        self._connection: HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None
        self._failed: dict[Address, float] = {}

    def open(self) -> None:
        """Connect to the first address that answers; those that failed recently are tried last.

        Raises ConnectionLost.
        """
        host, context, reasons = self._server.host, self._server.tls(), []
        candidates = addresses(host, self._server.port)
        for family, address in sorted(
            candidates, key=lambda candidate: self._failed.get(candidate, -1.0)
        ):
            try:
                opened = connect(
                    host, address, family, context, self._timeouts.connect, self._clock
                )
            except ConnectionLost as error:
                if error.forbidden:
                    raise
                self._failed[family, address] = self._clock.monotonic()
                reasons.append(f"{address[0]}:{address[1]}: {error.reason}")
                continue
            self._failed.pop((family, address), None)
            self._connection = HTTPConnection(host, self._server.port)
            self._connection.auto_open = 0
            self._socket = DeadlineSocket(opened, self._timeouts.move, self._clock)
            self._connection.sock = cast("Any", self._socket)
            return
        raise ConnectionLost(f"could not connect to any server: {'; '.join(reasons)}")

    def close(self) -> None:
        """Close at once; an exchange is either complete or lost."""
        connection, link = self._connection, self._socket
        self._connection = self._socket = None
        if connection is not None and link is not None:
            connection.close()
            link.end()

    def connected(self) -> None:
        """Open a connection unless there is a usable one: a server closes those that
        are idle. Raises as open.
        """
        if self._socket is not None and not self._socket.is_idle():
            self.close()
        if self._socket is None:
            self.open()

    def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        keep: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> HttpAnswer:
        """Send a request and return the complete answer, with at most ``keep`` bytes of its body.

        Call :meth:`connected` before. ``meanwhile`` is called when the request is
        written. Raises HttpLost.
        """
        link = self._socket
        assert link is not None
        link.deadline, link.is_sent = self._clock.monotonic() + self._timeouts.whole, False
        try:
            answer = self._exchange(link, method, path, headers, body, keep, meanwhile)
        except (OSError, HTTPException) as error:
            # A server cannot have processed a request before it has received the last byte.
            self.close()
            lost = _lost(error)
            raise HttpLost(lost.reason, forbidden=lost.forbidden, is_sent=link.is_sent) from None
        if not answer.is_success:
            self.close()
        return answer

    def _exchange(
        self,
        link: DeadlineSocket,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        keep: int,
        meanwhile: Callable[[], None],
    ) -> HttpAnswer:
        connection = self._connection
        assert connection is not None
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        headers_of_ours = {
            "Host": self._server.authority,
            "User-Agent": f"cmsspark/{__version__}",
            **headers,
            "Content-Length": str(len(body)),
            "Authorization": self._server.authorization,
        }
        for name, value in headers_of_ours.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        is_complete = link.post(body)
        meanwhile()
        answer = connection.getresponse()
        start = answer.read(keep)
        is_cut = False
        while answer.read(_CHUNK):
            is_cut = True
        if answer.length:
            raise IncompleteRead(start)
        if answer.will_close:
            self.close()
        if not is_complete:
            self.close()
            if 200 <= answer.status < 300:
                raise ConnectionError(0, "it answered before it had read the whole request")
        return HttpAnswer(answer.status, answer.reason, answer.headers, start, is_cut)


def fetch(
    server: HttpAddress,
    timeouts: HttpTimeouts,
    keep: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> HttpAnswer:
    """Return the answer to one request, made over a connection of its own. Raises ConnectionLost."""
    client = HttpClient(server, timeouts)
    try:
        client.open()
        return client.exchange(method, server.path or "/", headers or {}, body, keep)
    finally:
        client.close()


def fetch_json(url: str, seconds: float, keep: int = 32 << 20) -> Any:
    """Return the JSON at a URL. Raises ConnectionLost for no whole answer in time,
    ValueError for any other answer.
    """
    timeouts = HttpTimeouts(connect=seconds, move=seconds, whole=seconds)
    answer = fetch(HttpAddress.from_url(url), timeouts, keep)
    if not answer.is_success or answer.is_cut:
        raise ValueError(f"{answer.status} {answer.reason}")
    return msgspec.json.decode(answer.body)


def fetch_text(url: str, seconds: float, keep: int = 1 << 20) -> str:
    """Return the text at a URL, at most ``keep`` bytes. Raises as :func:`fetch_json`."""
    timeouts = HttpTimeouts(connect=seconds, move=seconds, whole=seconds)
    answer = fetch(HttpAddress.from_url(url), timeouts, keep)
    if not answer.is_success:
        raise ValueError(f"{answer.status} {answer.reason}")
    return answer.body.decode("utf-8", "replace")


def retry_after(header: str | None, now: float) -> float:
    """Return seconds of a Retry-After header, which is a number or a date; 0 for none
    and for anything else.

    ``now``: seconds since 1970.
    """
    text = (header or "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def _lost(error: OSError | HTTPException) -> ConnectionLost:
    """Return the ConnectionLost that describes what ended an exchange."""
    if isinstance(error, RemoteDisconnected):
        return ConnectionLost("the server closed the connection")
    if isinstance(error, IncompleteRead):
        return ConnectionLost("the server closed the connection in the middle of its answer")
    return (
        connection_lost(error)
        if isinstance(error, OSError)
        else ConnectionLost("the server does not speak HTTP")
    )
