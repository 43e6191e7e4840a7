"""Connections for every sink: names looked up, addresses dialled, certificates checked, each within a deadline."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

from cmsspark.publish.sink import Clock

#: (family, address) of one end that may be dialled.
Address = tuple[int, tuple[Any, ...]]
Lookup = Callable[..., list[Any]]

#: Seconds that a name server may take. The system's own patience is minutes where none answers.
LOOKUP: Final = 10.0


class LinkDown(Exception):
    """The connection is gone or of no use; ``forbidden`` when TLS refuses one side's certificate."""

    def __init__(self, reason: str, *, forbidden: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.forbidden = forbidden


def addresses(host: str, port: int, timeout: float = LOOKUP, lookup: Lookup = socket.getaddrinfo) -> list[Address]:
    """The addresses behind a name, IPv4 first (attempts over IPv6 have cost minutes).

    Raises LinkDown when the name does not resolve, or nobody says whether it does for ``timeout`` seconds.
    """
    found: list[Any] = []
    trouble: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(lookup(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            trouble.append(error)
        except UnicodeError:
            trouble.append(OSError(0, "no host has such a name"))

    # The system's resolver has no deadline and cannot be interrupted: a thread that nobody waits for may end late.
    asking = threading.Thread(target=ask, daemon=True, name=f"lookup of {host}")
    asking.start()
    asking.join(timeout)
    if trouble:
        raise LinkDown(f"{host}: the name does not resolve ({trouble[0].strerror})")
    if asking.is_alive() or not found:
        raise LinkDown(f"{host}: the name does not resolve (no answer in {timeout:.0f} s)")
    return sorted(((int(one[0]), one[4]) for one in found), key=lambda one: one[0] != socket.AF_INET)


def dial(
    host: str, address: tuple[Any, ...], family: int, context: ssl.SSLContext | None, timeout: float, clock: Clock
) -> socket.socket:
    """A non-blocking socket to one address of ``host``; with TLS the certificate is that of the name ``host``.

    Raises LinkDown within ``timeout`` seconds.
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
            _shake_hands(connection, deadline, clock)
        return connection
    except OSError as error:
        connection.close()
        raise down(error) from None


def _shake_hands(connection: ssl.SSLSocket, deadline: float, clock: Clock) -> None:
    """The TLS handshake, all of it before ``deadline``: a peer that drips bytes does not stretch it."""
    while True:
        try:
            connection.do_handshake()
            return
        except ssl.SSLWantReadError:
            wanted = select.POLLIN
        except ssl.SSLWantWriteError:
            wanted = select.POLLOUT
        await_ready(connection, wanted, deadline, clock)


def await_ready(connection: socket.socket, events: int, deadline: float, clock: Clock) -> None:
    """Wait until a socket can be read or written. Raises TimeoutError at the deadline."""
    left = deadline - clock.monotonic()
    if left <= 0:
        raise TimeoutError
    # Not select(): a driver with many open files has descriptors that it does not take.
    waiter = select.poll()
    waiter.register(connection, events)
    waiter.poll(left * 1000 + 1)


def down(error: OSError) -> LinkDown:
    """What an error of a socket means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return LinkDown(f"TLS: the broker's certificate is refused: {error.verify_message}", forbidden=True)
    if isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return LinkDown("the broker closed the TLS connection")
    if isinstance(error, ssl.SSLError):
        alert = "ALERT" in (error.reason or "") and "CLOSE_NOTIFY" not in (error.reason or "")
        return LinkDown(f"TLS: {error.reason or error}", forbidden=alert)
    if isinstance(error, TimeoutError):
        return LinkDown("no answer in time")
    return LinkDown(error.strerror or type(error).__name__)
