"""A process beside the server that answers what it is sent; it can be killed, and never
outlives the server.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.errors import as_ours

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

#: Seconds between two looks whether an answer is still needed.
LOOK_S: Final = 0.1
#: The exit code of a process that lacks memory, also to say so.
NO_MEMORY: Final = errno.ENOMEM


class Child:
    """A process that runs ``target(pipe, *values)``. All values must pickle."""

    def __init__(self, target: Callable[..., None], *values: Any) -> None:
        # Forking a process with threads may copy a lock that nobody releases.
        context = multiprocessing.get_context("spawn")
        self.pipe, child_end = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=_run, args=(target, child_end, os.getpid(), values), daemon=True
        )
        self._process.start()
        child_end.close()
        #: Whether :meth:`kill` has ended it.
        self.is_killed = False

    @property
    def is_alive(self) -> bool:
        """Whether it can answer."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, waiting a second for its end; None where it runs. Negative for a signal."""
        self._process.join(timeout=1)
        return self._process.exitcode

    def receive(
        self, end: float | None = None, is_gone: Callable[[], bool] = lambda: False
    ) -> Any:
        """Return what the process sends next, or raise the exception that it sends.

        Raises TimeoutError after ``end`` (monotonic seconds) and where ``is_gone``,
        EOFError where the process ended.
        """
        while not self.pipe.poll(LOOK_S):
            if is_gone() or (end is not None and time.monotonic() > end):
                raise TimeoutError
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """End the process at once."""
        self.is_killed = True
        self._process.kill()
        self._process.join(timeout=1)


def answered(function: Callable[[], Any]) -> Any:
    """Return the result of a function, or the exception to send in its place."""
    try:
        return function()
    except Exception as error:  # whatever it is, the server raises it
        return as_ours(error) or RuntimeError(f"{type(error).__name__}: {error}"[:500])


def _run(
    target: Callable[..., None], pipe: Connection, parent: int, values: tuple[Any, ...]
) -> None:
    # Ctrl-C is sent to all processes of a terminal: the server ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        target(pipe, *values)
    except MemoryError:
        sys.exit(NO_MEMORY)


def _end_with(parent: int) -> None:
    """End this process when the server is gone, also within work that cannot be interrupted."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
