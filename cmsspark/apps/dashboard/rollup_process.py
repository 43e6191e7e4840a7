"""Building segments in a process of its own: pages stay quick meanwhile, and its memory is free afterwards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from cmsspark.apps.dashboard import segment_build
from cmsspark.apps.dashboard.child_process import Child, answered
from cmsspark.apps.dashboard.segment import SegmentIndex
from cmsspark.base.memory import share_freed
from cmsspark.store.query.stored_parts import StoredInterval

#: Pages come first where both need the processors.
_NICE: Final = 5


class RollupProcess:
    """Calls :func:`segment_build.build` in a process that starts when needed and ends with :meth:`close`."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def __call__(self, days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
        """Build a segment. Raises MemoryError where the system killed the process, else what the function raises."""
        if self._child is None or not self._child.is_alive:
            self._child = Child(_serve)
        child = self._child
        try:
            child.pipe.send((days, store, folder))
            index: SegmentIndex = child.receive()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise MemoryError(f"the process that builds rollups ended with code {child.exit_code}") from None
        return index

    def close(self) -> None:
        """End the process; what it builds is dropped."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _serve(pipe: Connection) -> None:
    os.nice(_NICE)
    share_freed()
    with suppress(EOFError, OSError):
        while True:
            values = pipe.recv()
            pipe.send(answered(lambda values=values: segment_build.build(*values)))  # type: ignore[misc]
