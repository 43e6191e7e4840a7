"""Looking names up: within a deadline, IPv4 first. What a server said before it closed is read."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any

import pytest

from cmsspark.base.dates import SystemClock
from cmsspark.base.sockets import ConnectionLost, DeadlineSocket, addresses


def test_a_name_server_without_an_answer_costs_its_own_deadline_and_no_more() -> None:
    gate = threading.Event()

    def lookup(*arguments: object, **named: object) -> list[object]:
        gate.wait(600)
        return []

    started = time.monotonic()
    with pytest.raises(ConnectionLost, match="no answer in 0 s"):
        addresses("broker.example.org", 1, 0.2, lookup)
    assert time.monotonic() - started < 300
    gate.set()


def test_ipv4_comes_first() -> None:
    def lookup(*arguments: object, **named: object) -> list[Any]:
        return [
            (socket.AF_INET6, 1, 6, "", ("::1", 1, 0, 0)),
            (socket.AF_INET, 1, 6, "", ("127.0.0.1", 1)),
        ]

    assert [family for family, _ in addresses("x", 1, 5, lookup)] == [
        socket.AF_INET,
        socket.AF_INET6,
    ]


class ClosedAtWrite:
    """A connection that is closed when the first byte is written; ``arrived``: what can
    be read then.
    """

    def __init__(self, error: OSError, *arrived: bytes | OSError) -> None:
        self.error = error
        self.arrived: list[bytes | OSError] = [ssl.SSLWantReadError(), *arrived]

    def send(self, data: memoryview) -> int:
        raise self.error

    def recv(self, size: int) -> bytes:
        piece = self.arrived.pop(0) if self.arrived else ssl.SSLWantReadError()
        if isinstance(piece, OSError):
            raise piece
        return piece


def link_to(connection: Any) -> DeadlineSocket:
    return DeadlineSocket(connection, 5, SystemClock())


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError(), ssl.SSLEOFError()])
def test_a_certificate_that_is_refused_after_the_handshake_is_reported_though_a_write_failed(
    error: OSError,
) -> None:
    alert = ssl.SSLError(
        1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"
    )
    link = link_to(ClosedAtWrite(error, alert))
    assert not link.post(b"body")
    with pytest.raises(ssl.SSLError, match="certificate required"):
        link.receive(bytearray(10))


def test_an_answer_that_came_before_a_failed_write_is_read() -> None:
    link = link_to(ClosedAtWrite(BrokenPipeError(), b"HTTP/1.1 413 "))
    buffer = bytearray(13)
    assert not link.post(b"body") and link.receive(buffer) == 13 and buffer == b"HTTP/1.1 413 "


def test_a_failed_write_without_a_word_is_raised() -> None:
    link = link_to(ClosedAtWrite(ConnectionResetError()))
    with pytest.raises(ConnectionResetError):
        link.post(b"body")
