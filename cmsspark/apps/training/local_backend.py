"""``--on local``: workers as processes of this host."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, Any, Final

from cmsspark.apps.training import worker
from cmsspark.apps.training.barrier_task import free_addresses
from cmsspark.apps.training.launch import Attempt, WorkerFailure, describe_exit
from cmsspark.apps.training.script_check import TrainingRun
from cmsspark.base.errors import DataError

#: Seconds beyond the time of grace that a worker may take to end.
_END_SECONDS: Final = 5.0
_CHUNK: Final = 65_536


class LocalBackend:
    """Workers as processes of this host, in process groups of their own.

    The kernel ends them when the launcher is gone: each worker asks for a signal at its
    parent's death.
    """

    has_this_python = True

    def check(self, run: TrainingRun) -> None:
        """Warns of nothing: processes share the host's cores."""

    def attempt(self, attempt: Attempt) -> WorkerFailure | None:
        """As :meth:`Backend.attempt`."""
        run = attempt.run
        processes: list[_Process] = []
        addresses = free_addresses(run.workers)
        with selectors.DefaultSelector() as selector:
            try:
                for rank in range(run.workers):
                    attempt.on_state(rank, "pending")
                    job = run.job(
                        rank, addresses, str(attempt.folder(rank).absolute()), attempt.number
                    )
                    if run.gpus:
                        devices = range(rank * run.gpus, (rank + 1) * run.gpus)
                        job["environment"] = {
                            "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
                            **job["environment"],
                        }
                    process = _Process(rank, job)
                    processes.append(process)
                    selector.register(process.stdout, selectors.EVENT_READ, process)
                return self._wait(attempt, processes, selector)
            finally:
                self._end(attempt, processes, selector)

    def _wait(
        self, attempt: Attempt, processes: list[_Process], selector: selectors.BaseSelector
    ) -> WorkerFailure | None:
        """Pass lines on until all workers ended; the first failure."""
        while selector.get_map():
            for key, _ in selector.select():
                process: _Process = key.data
                is_open = process.read(attempt)
                if not is_open:
                    selector.unregister(process.stdout)
                if process.code not in (None, 0):
                    return attempt.failure(process.rank, describe_exit(process.code or 0))
                if not is_open and process.code is None:
                    return attempt.failure(
                        process.rank, f"is gone: its process {describe_exit(process.wait())}"
                    )
        return None

    def _end(
        self, attempt: Attempt, processes: list[_Process], selector: selectors.BaseSelector
    ) -> None:
        """Stop what still runs: all at once, then what is left after the time of grace."""
        for process in processes:
            process.stop()
        deadline = time.monotonic() + attempt.run.grace + _END_SECONDS
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(deadline - time.monotonic()):
                if not key.data.read(attempt):
                    selector.unregister(key.fileobj)
        for process in processes:
            process.end()
            if process.code is None or (process.code != 0 and process.was_stopped):
                attempt.on_state(process.rank, "stopped")


class _Process:
    """The worker program of one rank."""

    def __init__(self, rank: int, job: dict[str, Any]) -> None:
        self.rank = rank
        #: The script's exit code once it ended.
        self.code: int | None = None
        self.was_stopped = False
        self._script: int | None = None
        self._partial_line = b""
        # The job comes by a pipe: arguments and environment of processes can be seen by others.
        self._process = subprocess.Popen(
            [sys.executable, worker.__file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def stdout(self) -> IO[bytes]:
        """Where its frames come from."""
        assert self._process.stdout is not None
        return self._process.stdout

    def read(self, attempt: Attempt) -> bool:
        """Take what there is to read; false where it is the end."""
        chunk = os.read(self.stdout.fileno(), _CHUNK)
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line), attempt)
        return bool(chunk)

    def _take(self, frame: dict[str, Any], attempt: Attempt) -> None:
        if "line" in frame:
            attempt.line(self.rank, frame["line"])
        elif "started" in frame:
            self._script = frame["started"]
            attempt.on_state(self.rank, "running")
        elif "code" in frame:
            self.code = frame["code"]
            if self.code == 0:
                attempt.on_state(self.rank, "done")
        else:
            raise DataError("a worker sent an invalid frame", found=repr(frame)[:100])

    def stop(self) -> None:
        """Ask the worker to stop its script: it does when its stdin ends. Returns at once."""
        self.was_stopped = self.code is None
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> int:
        """Return the exit code of the worker program."""
        return self._process.wait(_END_SECONDS)

    def end(self) -> None:
        """Kill what is left of worker and script, and wait for it."""
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.0 if self.code is None else _END_SECONDS)
        if self._process.poll() is None or self.code is None:
            for pid in (self._script, self._process.pid):
                with suppress(ProcessLookupError, PermissionError, TypeError):
                    os.killpg(pid, signal.SIGKILL)  # type: ignore[arg-type]  # None is no group
        self._process.wait()
        self.stdout.close()
