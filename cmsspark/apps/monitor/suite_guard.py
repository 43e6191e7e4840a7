"""Ends what a suite started when its runner is killed (SIGKILL, no memory left): it cannot do so itself any more.

The guard is a process of its own in a session of its own. Its standard input is a pipe that only the runner holds, and
on which the runner names what it starts. Where the pipe ends without the message ``end``, the runner was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cmsspark
from cmsspark.apps.monitor.suite_processes import STEP_VARIABLE, end_processes
from cmsspark.base import clock
from cmsspark.store.process_samples import ENDED, RUNNING, LogEntry, open_processes

_MAIN: Final = "from cmsspark.apps.monitor.suite_guard import main; main()"
_PATIENCE_S: Final = 10.0


@dataclass
class Guard:
    """The runner's end of the pipe. A guard that could not be started, or that died, changes nothing for the suite."""

    state_dir: Path
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guard:
        # A suite that runs as the step of another one is ended with all of its marks: its guard has none.
        environ = {name: value for name, value in os.environ.items() if name != STEP_VARIABLE}
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(self.state_dir.absolute())], stdin=subprocess.PIPE, env=environ,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                # The package is found there, and nothing of the suite's folder is taken for a module.
                cwd=Path(cmsspark.__file__).parents[1],
            )  # fmt: skip
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


@dataclass
class _Started:
    """What the runner has started, by its messages."""

    run: str = ""
    scratch: Path | None = None
    groups: set[int] = field(default_factory=set)
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
        left = end_processes(self.groups, f"{self.run}/")
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        with open_processes(state_dir) as database:
            for run in database.runs():
                if run.run == self.run and run.status == RUNNING:
                    run.status, run.end_ms = ENDED, clock.now_ms()
                    database.put_run(run)
                    text = f"cmsspark lab perf run was killed; {len(left)} processes of its steps are ended: "
                    database.add([], [LogEntry(run.run, run.end_ms, "error", text + ", ".join(left), run.host)])


def main() -> None:
    """Guard the runner at the other end of standard input; the argument is the folder of the database."""
    started = _Started()
    started.read(sys.stdin.buffer)
    if not started.is_over and started.run:
        started.end(Path(sys.argv[1]))
