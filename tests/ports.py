"""Ports for servers of tests, which nobody else gets between the moment that one is
chosen and its use.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 20_000
#: The end of the ports that the kernel gives to no client, and to no server that asks
#: for any port.
_END: Final = int(_RANGE.read_text().split()[0]) if _RANGE.is_file() else 0
#: Each worker of pytest-xdist has its own third. It begins anywhere there, as two runs
#: of tests may go on at once.
_WORKERS: Final = 3
_SHARE: Final = max(0, _END - _FIRST) // _WORKERS
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_LOWEST: Final = _FIRST + _SHARE * (_WORKER % _WORKERS)
#: Not the common generator, which tests seed.
_NUMBERS: Final = itertools.count(random.SystemRandom().randrange(_SHARE or 1))


def free_port() -> int:
    """Return a port that nothing listens on, now and until the caller does; another one
    with each call.
    """
    for _ in range(_SHARE):
        port = _LOWEST + next(_NUMBERS) % _SHARE
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, all different."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)
