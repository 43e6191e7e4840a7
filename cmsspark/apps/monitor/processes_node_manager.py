"""Finds the NodeManager of YARN on this host."""

from __future__ import annotations

from contextlib import suppress

import psutil

from cmsspark.apps.monitor.processes_roles import YARN_NODE_MANAGER, role_of
from cmsspark.base.errors import InputMissing, UsageError


def find_node_manager() -> int:
    """Return the PID of this host's NodeManager. Raises InputMissing (66) for none, UsageError (2) for several."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if role_of(process.name(), words, None) == YARN_NODE_MANAGER:
                found.append(int(process.pid))
    if not found:
        raise InputMissing(
            "a NodeManager is wanted on this host",
            found="none that this account sees",
            next_step="start the monitor as the user of the NodeManager, or name its process with --pid",
        )
    if len(found) > 1:
        raise UsageError(
            "one NodeManager is wanted",
            found=f"processes {', '.join(map(str, found))}",
            next_step="name one with --pid",
        )
    return found[0]
