"""The identity of a process that holds a lease or writes a run, and whether it is
alive, if this host can know.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any


def identity() -> dict[str, Any]:
    """Identify this process: ``host``, ``pid``, and what tells it from another process
    with the same number.

    ``kernel`` is the running system (boot and process namespace), ``started`` the
    process's start in clock ticks since then.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "kernel": _kernel(),
        "started": start_ticks(os.getpid()),
    }


def lives(process: Mapping[str, Any]) -> bool | None:
    """Return whether that process exists; None where it runs, or ran, on another system.

    No clock is used: a stopped process is alive, and a process whose number was reused is not.
    """
    pid = process.get("pid")
    if not _kernel() or process.get("kernel") != _kernel() or not isinstance(pid, int):
        return None
    return start_ticks(pid) == process.get("started") is not None


def named(process: Mapping[str, Any]) -> str:
    """Return the process as messages name it."""
    return f"process {process.get('pid')} on {process.get('host')}"


@cache
def _kernel() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the boot; None where it does not run.

    That is field 22 of ``/proc/PID/stat``, behind a name with any blanks and brackets.
    A zombie counts as ended.
    """
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])
    return None
