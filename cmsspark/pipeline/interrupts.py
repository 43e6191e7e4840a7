"""SIGTERM handled as Ctrl-C, for commands that must leave their state in order when they are stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; outside of the main thread nothing changes.

    A batch that is being sent becomes in doubt; everything else stays as it is.
    """

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
