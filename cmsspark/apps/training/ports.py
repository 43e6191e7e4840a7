"""Ports for workers, without a race between choosing one and binding it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


def reserved(host: str) -> socket.socket:
    """A socket that holds a free port of ``host`` until it is closed.

    It does not listen, and shares its address: a server of this user that sets SO_REUSEADDR or SO_REUSEPORT, as
    those of gRPC and PyTorch do, can bind the port and listen, and nobody else is given it meanwhile.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, 0))
    except BaseException:
        held.close()
        raise
    return held


@contextmanager
def reserved_addresses(count: int, host: str = "127.0.0.1") -> Iterator[list[str]]:
    """``host:port`` of ``count`` ports that are held inside."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(reserved(host)) for _ in range(count)]
        yield [f"{host}:{held.getsockname()[1]}" for held in sockets]
