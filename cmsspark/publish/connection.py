"""Connections for every sink: name lookup, connect and TLS handshake, each within a deadline."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

from cmsspark.publish.sink import Clock

#: (family, address) of one end to connect to.
Address = tuple[int, tuple[Any, ...]]
Lookup = Callable[..., list[Any]]

#: Seconds to wait for a name server. The system's own limit is minutes where none answers.
LOOKUP_TIMEOUT: Final = 10.0


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

    Raises ConnectionLost when the name does not resolve, or no name server answers for ``timeout`` seconds.
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

    # The system's resolver has no deadline and cannot be interrupted, so it runs in a thread that may end late.
    thread = threading.Thread(target=resolve, daemon=True, name=f"lookup of {host}")
    thread.start()
    thread.join(timeout)
    if errors:
        raise ConnectionLost(f"{host}: the name does not resolve ({errors[0].strerror})")
    if thread.is_alive() or not results:
        raise ConnectionLost(f"{host}: the name does not resolve (no answer in {timeout:.0f} s)")
    return sorted(((int(result[0]), result[4]) for result in results), key=lambda entry: entry[0] != socket.AF_INET)


def connect(
    host: str, address: tuple[Any, ...], family: int, context: ssl.SSLContext | None, timeout: float, clock: Clock
) -> socket.socket:
    """Return a non-blocking socket to one address of ``host``; with TLS the certificate must be for ``host``.

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
            connection = context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
            _handshake(connection, deadline, clock)
        return connection
    except OSError as error:
        connection.close()
        raise connection_lost(error) from None


def _handshake(connection: ssl.SSLSocket, deadline: float, clock: Clock) -> None:
    """Finish the TLS handshake before ``deadline``: a peer that sends a byte at a time cannot extend it."""
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
    left = deadline - clock.monotonic()
    if left <= 0:
        raise TimeoutError
    # Not select(): it rejects descriptors above 1023, which a driver with many open files has.
    poller = select.poll()
    poller.register(connection, events)
    poller.poll(left * 1000 + 1)


def connection_lost(error: OSError) -> ConnectionLost:
    """Return the ConnectionLost that describes a socket's error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionLost(f"TLS: the server's certificate is rejected: {error.verify_message}", forbidden=True)
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return ConnectionLost("the server closed the TLS connection")
    if isinstance(error, ssl.SSLError):
        alert = "ALERT" in (error.reason or "") and "CLOSE_NOTIFY" not in (error.reason or "")
        return ConnectionLost(f"TLS: {error.reason or error}", forbidden=alert)
    if isinstance(error, TimeoutError):
        return ConnectionLost("no answer in time")
    return ConnectionLost(error.strerror or type(error).__name__)
