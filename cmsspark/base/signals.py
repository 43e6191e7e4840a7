"""Signals: SIGTERM ends a command as Ctrl-C does, so that whatever was begun is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt inside the block on SIGTERM; the handler before is
    restored at the end.

    In other threads than the main one nothing changes: Python handles signals in the
    main thread only.
    """

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
