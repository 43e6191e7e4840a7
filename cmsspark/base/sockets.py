"""Sockets with deadlines: name lookup, connect, TLS handshake, and each step of an exchange."""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cmsspark.base.dates import Clock

#: (family, address) of one end to connect to.
Address = tuple[int, tuple[Any, ...]]
Lookup = Callable[..., list[Any]]

#: Seconds to wait for a name server. The system's own limit is minutes where none answers.
LOOKUP_TIMEOUT: Final = 10.0
_CHUNK: Final = 65_536


class ConnectionLost(Exception):
    """The connection failed or is unusable; ``forbidden`` when TLS rejects one side's certificate."""

    def __init__(self, reason: str, *, forbidden: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.forbidden = forbidden


def addresses(
    host: str, port: int, timeout: float = LOOKUP_TIMEOUT, lookup: Lookup = socket.getaddrinfo
) -> list[Address]:
    """Return the addresses behind a name, IPv4 first (attempts over IPv6 have cost minutes).

    Raises ConnectionLost when the name does not resolve, or no name server answers for
    ``timeout`` seconds.
    """
    results: list[Any] = []
    errors: list[OSError] = []

    def resolve() -> None:
        try:
            results.extend(lookup(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            errors.append(error)
        except UnicodeError:
            errors.append(OSError(0, "no host has such a name"))

    # The system's resolver has no deadline and cannot be interrupted, so it runs in a
    # thread that may end late.
    thread = threading.Thread(target=resolve, daemon=True, name=f"lookup of {host}")
    thread.start()
    thread.join(timeout)
    if errors:
        raise ConnectionLost(f"{host}: the name does not resolve ({errors[0].strerror})")
    if thread.is_alive() or not results:
        raise ConnectionLost(f"{host}: the name does not resolve (no answer in {timeout:.0f} s)")
    return sorted(
        ((int(result[0]), result[4]) for result in results),
        key=lambda entry: entry[0] != socket.AF_INET,
    )


def connect(
    host: str,
    address: tuple[Any, ...],
    family: int,
    context: ssl.SSLContext | None,
    timeout: float,
    clock: Clock,
) -> socket.socket:
    """Return a non-blocking socket to one address of ``host``; with TLS the certificate
    must be for ``host``.

    Raises ConnectionLost within ``timeout`` seconds.
    """
    deadline = clock.monotonic() + timeout
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        if context is not None:
            connection = context.wrap_socket(
                connection, server_hostname=host, do_handshake_on_connect=False
            )
            _handshake(connection, deadline, clock)
        return connection
    except OSError as error:
        connection.close()
        raise connection_lost(error) from None


def _handshake(connection: ssl.SSLSocket, deadline: float, clock: Clock) -> None:
    """Finish the TLS handshake before ``deadline``: a peer that sends a byte at a time
    cannot extend it.
    """
    while True:
        try:
            connection.do_handshake()
            return
        except ssl.SSLWantReadError:
            events = select.POLLIN
        except ssl.SSLWantWriteError:
            events = select.POLLOUT
        await_ready(connection, events, deadline, clock)


def await_ready(connection: socket.socket, events: int, deadline: float, clock: Clock) -> None:
    """Wait until a socket can be read or written. Raises TimeoutError at the deadline."""
    remaining = deadline - clock.monotonic()
    if remaining <= 0:
        raise TimeoutError
    # Not select(): it rejects descriptors above 1023, which a driver with many open files has.
    poller = select.poll()
    poller.register(connection, events)
    poller.poll(remaining * 1000 + 1)


def connection_lost(error: OSError) -> ConnectionLost:
    """Return the ConnectionLost that describes a socket's error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionLost(
            f"TLS: the server's certificate is rejected: {error.verify_message}", forbidden=True
        )
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return ConnectionLost("the server closed the TLS connection")
    if isinstance(error, ssl.SSLError):
        alert = "ALERT" in (error.reason or "") and "CLOSE_NOTIFY" not in (error.reason or "")
        return ConnectionLost(f"TLS: {error.reason or error}", forbidden=alert)
    if isinstance(error, TimeoutError):
        return ConnectionLost("no answer in time")
    return ConnectionLost(error.strerror or type(error).__name__)


class DeadlineSocket:
    """The part of a socket that HTTPConnection uses, each operation with a deadline.

    ``deadline``: of the whole exchange; ``is_sent``: the last byte of the request was accepted.
    """

    def __init__(self, connection: socket.socket, move: float, clock: Clock) -> None:
        self.deadline = clock.monotonic() + move
        self.is_sent = False
        self._head = bytearray()
        self._early = b""
        self._error: OSError | None = None
        self._connection = connection
        self._move = move
        self._clock = clock

    def sendall(self, data: bytes) -> None:
        """Keep the head of a request; :meth:`post` writes it with the body."""
        self._head += data

    def post(self, body: bytes) -> bool:
        """Write head and body; False when the server answers before it has everything: it refuses.

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
                # A server that refuses may answer and read no further.
                await_ready(self._connection, select.POLLOUT | select.POLLIN, until, self._clock)
            except (ConnectionError, ssl.SSLEOFError):
                # The server has closed. Why may have arrived before: an answer, or with
                # TLS 1.3 a refused certificate.
                if self.is_idle():
                    raise
                return False
        self.is_sent = True
        return True

    def receive(self, buffer: Any) -> int:
        """Read what has arrived, at least one byte, or 0 at the end."""
        if self._early:
            piece, self._early = self._early[: len(buffer)], self._early[len(buffer) :]
            buffer[: len(piece)] = piece
            return len(piece)
        if self._error is not None:
            raise self._error
        read = partial(self._connection.recv_into, buffer)
        until = self._until()
        while True:
            try:
                return read()
            except (BlockingIOError, ssl.SSLWantReadError):
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            await_ready(self._connection, events, until, self._clock)

    def is_idle(self) -> bool:
        """Return whether nothing is unread: neither an end nor bytes. Does not wait."""
        if not self._early:
            try:
                # Not poll(): under TLS the bytes may be no more than session tickets.
                self._early = self._connection.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            except OSError as error:
                self._error = error  # may hold the reason, and would not be raised twice
        return False

    def _until(self) -> float:
        """Return the time by which some byte must have moved."""
        return min(self.deadline, self._clock.monotonic() + self._move)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the stream that the answer is read from."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Do nothing: HTTPConnection calls it, perhaps before the body was read;
        :meth:`end` closes the socket.
        """

    def end(self) -> None:
        """Close the socket."""
        self._connection.close()


class _Reader(io.RawIOBase):
    def __init__(self, link: DeadlineSocket) -> None:
        self._link = link

    def readable(self) -> bool:
        """Return true: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Return bytes of the answer."""
        return self._link.receive(buffer)
