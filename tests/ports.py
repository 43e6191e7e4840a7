"""Ports for servers of tests, which nobody else gets between the moment that one is chosen and its use."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 20_000
#: Not the common generator, which tests seed: two runs at once would choose the same ports.
_RANDOM: Final = random.SystemRandom()


def free_port() -> int:
    """A port that nothing listens on now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, all different.

    They lie below those that the kernel gives to each client, and to each server that asks for any port: one of these
    would be taken by another test while a server starts, or is down to be started again.
    """
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            sockets.append(_bound())
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _bound() -> socket.socket:
    last = int(_RANGE.read_text().split()[0]) - 1 if _RANGE.is_file() else 0
    for _ in range(1_000 if last > _FIRST else 0):
        one = socket.socket()
        try:
            one.bind(("127.0.0.1", _RANDOM.randint(_FIRST, last)))
            return one
        except OSError:
            one.close()
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    return one
