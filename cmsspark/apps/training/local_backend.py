"""``--on local``: workers as processes of this host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

from cmsspark.apps.training import worker
from cmsspark.apps.training.barrier_task import free_addresses
from cmsspark.apps.training.launch import Attempt, Frames, WorkerFailure, describe_exit
from cmsspark.apps.training.script_check import TrainingRun

#: Seconds beyond the time of grace that a worker may take to end.
_END_SECONDS: Final = 5.0


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
        run, frames = attempt.run, Frames(attempt)
        addresses = free_addresses(run.workers)
        processes: dict[int, subprocess.Popen[bytes]] = {}
        readers: list[threading.Thread] = []
        try:
            for rank in range(run.workers):
                job = run.job(
                    rank, addresses, str(attempt.folder(rank).absolute()), attempt.number
                )
                if run.gpus:
                    devices = range(rank * run.gpus, (rank + 1) * run.gpus)
                    shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
                    job["environment"] = {**shown, **job["environment"]}
                process = processes[rank] = _start(job)
                stream = (rank, process.stdout, lambda process=process: _lost_reason(process))
                readers.append(threading.Thread(target=frames.read, args=stream, daemon=True))
                readers[-1].start()
            return frames.wait()
        finally:
            _stop(frames, processes, run.grace + _END_SECONDS)
            for reader in readers:
                reader.join(_END_SECONDS)
            frames.drain()
            for rank in frames.remaining:
                attempt.on_state(rank, "stopped")
            for process in processes.values():
                assert process.stdout is not None
                process.stdout.close()


def _start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the worker program."""
    process = subprocess.Popen(
        [sys.executable, worker.__file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    # The job comes by a pipe: arguments and environment of processes can be seen by others.
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
    return process


def _lost_reason(process: subprocess.Popen[bytes]) -> str:
    return f"is gone: its process {describe_exit(process.wait())}"


def _stop(frames: Frames, processes: dict[int, subprocess.Popen[bytes]], seconds: float) -> None:
    """Stop what still runs: all at once, then what is left after some seconds."""
    for process in processes.values():
        assert process.stdin is not None
        with suppress(OSError):
            # A worker stops its script when its stdin ends.
            process.stdin.close()
    deadline = time.monotonic() + seconds
    for rank, process in processes.items():
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        frames.drain()
        if process.poll() is None or process.returncode < 0:
            # A worker that was killed leaves what its script started.
            for pid in (frames.scripts.get(rank), process.pid):
                with suppress(ProcessLookupError, PermissionError, TypeError):
                    os.killpg(pid, signal.SIGKILL)  # type: ignore[arg-type]  # None is no group
        process.wait()
