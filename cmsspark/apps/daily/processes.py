"""Starts the command lines of ``cmsspark daily`` as processes and waits for their exit codes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress

from cmsspark.base.errors import Exit

#: Runs a command line to its end and returns its exit code.
Runner = Callable[[list[str]], int]


class Commands:
    """Runs command lines as processes; their output goes to stderr, because stdout is for the summary."""

    def __init__(self) -> None:
        self._children: set[subprocess.Popen[bytes]] = set()

    def __call__(self, argv: list[str]) -> int:
        with subprocess.Popen(argv, stdout=_stderr()) as child:
            self._children.add(child)
            try:
                code = child.wait()
            except BaseException:
                self.stop()
                raise
            finally:
                self._children.discard(child)
        return code if code >= 0 else int(Exit.NOT_READY)

    def stop(self) -> None:
        """Send SIGTERM to the processes that still run."""
        for child in list(self._children):
            with suppress(OSError):
                child.terminate()


def _stderr() -> int:
    """Return the descriptor of stderr, or of nothing where the caller closed it."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
