"""Ports for workers that any framework can bind: below those that the kernel gives to connections."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

#: The lowest port that is chosen; well-known services are below.
LOWEST: Final = 15_000
_TRIES: Final = 200


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Return ``host:port`` of ports that are free now.

    The kernel gives none of them to a connection, or to a server that asks for any port, so they stay free until the
    framework binds them. Nothing holds them, as a server without SO_REUSEADDR could not bind them then.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(host)) for _ in range(count)]
        return [f"{host}:{bound.getsockname()[1]}" for bound in sockets]


def _bound(host: str) -> socket.socket:
    ports = range(LOWEST, _first_of_kernel())
    for _ in range(_TRIES if ports else 0):
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with suppress(OSError):
            bound.bind((host, random.choice(ports)))  # noqa: S311  # no secret
            return bound
        bound.close()
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.bind((host, 0))
    return bound


def _first_of_kernel() -> int:
    """Return the first port that the kernel gives to connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as stream:
            return int(stream.read().split()[0])
    except (OSError, ValueError):
        return 32_768
