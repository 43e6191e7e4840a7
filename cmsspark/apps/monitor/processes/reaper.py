"""Ends what a suite started: the processes of a step, and all of them when the runner
itself is killed.

A runner that is killed (SIGKILL, no memory left) can end nothing any more. The reaper
is a process of its own in a session of its own. Its standard input is a pipe that only
the runner holds, and on which the runner names what it starts. Where the pipe ends
without the message ``end``, the runner was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

import cmsspark
from cmsspark.apps.monitor.processes.sampler import STEP_VARIABLE
from cmsspark.base import dates
from cmsspark.store.process_samples import ENDED, RUNNING, LogEntry, open_processes

#: Seconds that processes have to end by themselves after the step, and after SIGTERM or SIGKILL.
_GRACE: Final = 1.0
_TERM_SECONDS: Final = 5.0


def end_step(child: subprocess.Popen[bytes], marker: str | None = None) -> list[str]:
    """End what is left of a step, or of a monitor of a node, which has no marker; the
    names of processes that outlived a step which ended by itself.
    """
    has_ended = child.poll() is not None
    try:
        processes = _find_processes({child.pid}, marker)
        if has_ended and processes:
            # Workers and shutdown hooks end shortly after what started them.
            processes = psutil.wait_procs(processes, timeout=_GRACE)[1]
        names = [_name(process) for process in processes] if has_ended else []
        _terminate(processes)
    finally:
        # Also after a second Ctrl-C, and for what was started meanwhile.
        _kill({child.pid}, marker)
        # A program with more rights than we have cannot be ended: it is not waited for.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_TERM_SECONDS)
    return names


def _terminate(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(processes, timeout=_TERM_SECONDS)


def _kill(groups: Collection[int], marker: str | None) -> None:
    """Kill processes and wait until they are gone, which takes a moment on a busy machine."""
    killed = []
    for process in _find_processes(groups, marker):
        # One with more rights than we have is not waited for.
        with suppress(psutil.Error):
            process.kill()
            killed.append(process)
    psutil.wait_procs(killed, timeout=_TERM_SECONDS)


def _find_processes(groups: Collection[int], marker: str | None) -> list[psutil.Process]:
    """Living processes of some process groups, or whose marker in their environment begins so."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_member = os.getpgid(process.pid) in groups
            if not is_member and marker is not None:
                is_member = process.environ().get(STEP_VARIABLE, "").startswith(marker)
            if (
                is_member
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                processes.append(process)
    return processes


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.name()} ({process.pid})"
    return str(process.pid)


_MAIN: Final = "from cmsspark.apps.monitor.processes.reaper import main; main()"
_PATIENCE_S: Final = 10.0


class OrphanReaper(msgspec.Struct):
    """The runner's end of the pipe. A guard that could not be started, or that died,
    changes nothing for the suite.
    """

    state_dir: Path
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OrphanReaper:
        # A suite that runs as the step of another one is ended with all of its marks:
        # its guard has none.
        environ = {name: value for name, value in os.environ.items() if name != STEP_VARIABLE}
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(self.state_dir.absolute())],
                stdin=subprocess.PIPE,
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                # The package is found there, and nothing of the suite's folder is taken
                # for a module.
                cwd=Path(cmsspark.__file__).parents[1],
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._send("end")
        if self._process is not None:
            # One that has not even started yet, on a machine that is busy, ends later by itself.
            with suppress(OSError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=_PATIENCE_S)

    def run_began(self, run: str, scratch: Path) -> None:
        """Note that a run begins, with a scratch folder."""
        self._send("run", run, str(scratch))

    def started(self, pid: int) -> None:
        """Note that a process group of the run was started."""
        self._send("started", pid)

    def ended(self, pid: int) -> None:
        """Note that a process group has ended: its number may be that of another one from now on."""
        self._send("ended", pid)

    def _send(self, *words: str | int) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(json.dumps(words).encode() + b"\n")
                self._process.stdin.flush()


class _Started(msgspec.Struct):
    """What the runner has started, by its messages."""

    run: str = ""
    scratch: Path | None = None
    groups: set[int] = msgspec.field(default_factory=set)
    is_over: bool = False

    def read(self, lines: Iterable[bytes]) -> None:
        """Take messages until there are no more; one that is cut names nothing."""
        for line in lines:
            with suppress(ValueError):
                verb, *words = json.loads(line)
                if verb == "run":
                    self.run, self.scratch = words[0], Path(words[1])
                elif verb == "started":
                    self.groups.add(words[0])
                elif verb == "ended":
                    self.groups.discard(words[0])
                elif verb == "end":
                    self.is_over = True

    def end(self, state_dir: Path) -> None:
        """End all of it, and store that the run has ended."""
        marker = f"{self.run}/"
        processes = _find_processes(self.groups, marker)
        names = [_name(process) for process in processes]
        _terminate(processes)
        _kill(self.groups, marker)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        with open_processes(state_dir) as database:
            for run in database.runs():
                if run.run == self.run and run.status == RUNNING:
                    run.status, run.end_ms = ENDED, dates.now_ms()
                    database.put_run(run)
                    text = "cmsspark lab perf run was killed; ended processes of its steps: "
                    database.add(
                        [],
                        [
                            LogEntry(
                                run.run, run.end_ms, "error", text + ", ".join(names), run.host
                            )
                        ],
                    )


def main() -> None:
    """Guard the runner at the other end of standard input; the argument is the folder
    of the database.
    """
    started = _Started()
    started.read(sys.stdin.buffer)
    if not started.is_over and started.run:
        started.end(Path(sys.argv[1]))
