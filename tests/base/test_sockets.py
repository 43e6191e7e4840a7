"""Looking names up: within a deadline, IPv4 first."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from cmsspark.base.sockets import ConnectionLost, addresses


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

    assert [family for family, _ in addresses("x", 1, 5, lookup)] == [socket.AF_INET, socket.AF_INET6]
