"""Ends the processes of a step of a suite: its own, those below it, and those that left its process group."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import psutil

#: The variable of a step's environment by which processes are recognised that became daemons: ``RUN/NUMBER/``.
STEP_VARIABLE: Final = "CMSSPARK_PERF_STEP"
#: Seconds that processes have to end by themselves after the step, and after SIGTERM.
_GRACE: Final = 1.0
_TERM_SECONDS: Final = 5.0


def end_step(child: subprocess.Popen[bytes], marker: str) -> list[str]:
    """End what is left of a step; the names of processes that outlived a step which ended by itself."""
    has_ended = child.poll() is not None
    try:
        left = _processes_of({child.pid}, marker)
        if has_ended and left:
            # Workers and shutdown hooks end shortly after what started them.
            left = psutil.wait_procs(left, timeout=_GRACE)[1]
        names = [_name(process) for process in left] if has_ended else []
        _terminate(left)
    finally:
        # Also after a second Ctrl-C, and for what was started meanwhile.
        _kill({child.pid}, marker)
        # A program with more rights than we have cannot be ended: it is not waited for.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_TERM_SECONDS)
    return names


def end_processes(groups: Collection[int], marker: str) -> list[str]:
    """End all processes of some groups, or whose marker begins so; their names."""
    left = _processes_of(groups, marker)
    names = [_name(process) for process in left]
    _terminate(left)
    _kill(groups, marker)
    return names


def _terminate(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(processes, timeout=_TERM_SECONDS)


def _kill(groups: Collection[int], marker: str) -> None:
    for process in _processes_of(groups, marker):
        with suppress(psutil.Error):
            process.kill()


def _processes_of(groups: Collection[int], marker: str) -> list[psutil.Process]:
    """Living processes of some process groups, or whose marker in their environment begins so."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_member = os.getpgid(process.pid) in groups or process.environ().get(STEP_VARIABLE, "").startswith(marker)
            if is_member and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.name()} ({process.pid})"
    return str(process.pid)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process and its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
            if child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(5)
        if child.poll() is not None and number == signal.SIGTERM:
            # Its children may need a moment; what is left of the group is killed.
            time.sleep(0.05)
