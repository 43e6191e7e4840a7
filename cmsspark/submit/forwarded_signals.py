"""Signals to ``run_spark`` are those of what it runs: a child and all processes below it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Forward:
    """Hands SIGTERM and SIGHUP on to a child and all below it; Ctrl-C reaches them by itself."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.received.append(number)
        self._send(number)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Name the child; it gets what came while it started."""
        self._child = child
        for number in self.received:
            self._send(number)

    def _send(self, number: int) -> None:
        if self._child is not None and number != signal.SIGINT:
            for pid in [*descendants(self._child.pid), self._child.pid]:
                with_signal(pid, number)


@contextmanager
def forwarding() -> Iterator[Forward]:
    """Handle signals from before a child starts to its end: one that came between would
    end this process alone.
    """
    forward = Forward()
    # What is ignored stays so: `nohup run_spark` outlives its terminal.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = [signal.signal(number, forward.note) for number in numbers]
    try:
        yield forward
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def with_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``: the driver's Python and its workers."""
    import psutil  # only runs that are ended need it

    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []
