"""``--on local``: workers as processes of this host."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import IO, Any, Final

from cmsspark.apps.training import worker
from cmsspark.apps.training.launch import Attempt, WorkerFailure, describe_exit
from cmsspark.apps.training.script_check import TrainingRun
from cmsspark.base.errors import DataError

# A worker in a barrier task of Spark: what runs on executors, which need not have this
# package.

#: Bytes of an archive in one frame.
CHUNK = 3 * 2**16
#: The lowest port that is chosen; well-known services are below.
LOWEST = 15_000
_TRIES = 200


def run_worker(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the worker of this barrier task; gives one row with its rank and exit code.

    ``plan``: ``job`` without rank and addresses, ``worker`` (the program's text),
    ``script_text``, ``driver`` (host, port), ``token``, ``outputs`` (rank → folder of
    the run, on the driver's host), ``restore`` (elsewhere: rank → archive of the output
    of an attempt before), ``files`` (an archive).
    """
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank = context.partitionId()
    if context.attemptNumber() > 0:
        # Retries are the launcher's: only it knows how many are allowed, and reports them.
        raise RuntimeError("cmsspark lab train: Spark may not start a worker again")
    folder = tempfile.mkdtemp(prefix="cmsspark-train-")
    link = socket.create_connection(tuple(plan["driver"]), 30)
    try:
        link.settimeout(None)
        host = (
            context.getTaskInfos()[rank].address.rpartition(":")[0]
            or context.getTaskInfos()[rank].address
        )
        with suppress(OSError):
            host = socket.gethostbyname(host)
        port = free_addresses(1, "")[0].rpartition(":")[2]
        addresses = context.allGather(f"{host}:{port}")
        gpus = context.resources().get("gpu")
        if gpus is not None:
            devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)}
            plan["job"]["environment"] = {**devices, **plan["job"]["environment"]}
        _send(link, {"token": plan["token"], "rank": rank})
        code = _run(plan, rank, list(addresses), folder, link)
        yield {"rank": rank, "code": code}
    finally:
        link.close()
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    plan: dict[str, Any], rank: int, addresses: list[str], folder: str, link: socket.socket
) -> int:
    """Start the worker program and pass its frames on; its output follows them. The
    script's exit code.
    """
    output = plan["outputs"].get(rank) or os.path.join(folder, "output")
    os.makedirs(output, exist_ok=True)
    if rank in plan["restore"]:
        unpack(plan["restore"][rank], output)
    files = {"worker.py": plan["worker"], plan["script_name"]: plan["script_text"]}
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
            stream.write(text)
    script = os.path.join(folder, plan["script_name"])
    job = {
        **plan["job"],
        "rank": rank,
        "addresses": addresses,
        "output": output,
        "script": script,
        "files": None,
    }
    if plan["files"]:
        job["files"] = os.path.join(folder, "files")
        os.mkdir(job["files"])
        unpack(plan["files"], job["files"])
    program = [sys.executable, os.path.join(folder, "worker.py"), str(os.getpid())]
    process = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(job).encode() + b"\n")
    process.stdin.flush()
    threading.Thread(target=_stop_at_end, args=(link, process), daemon=True).start()
    code = -9
    final: list[dict[str, Any]] = []
    for line in process.stdout:
        frame = json.loads(line)
        if "code" in frame:
            code = frame["code"]
            final.append(frame)
        else:
            with suppress(OSError):
                _send(link, frame)
    process.wait()
    with suppress(OSError):
        archive = b"" if rank in plan["outputs"] else pack(output)
        for start in range(0, len(archive), CHUNK):
            _send(link, {"archive": base64.b64encode(archive[start : start + CHUNK]).decode()})
        # Last: the driver has the output when it learns that the script ended.
        _send(link, final[0] if final else {"code": code, "stopped": False})
    return code


def _stop_at_end(link: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Wait for the driver's end of the connection; then end the worker by closing its stdin."""
    with suppress(OSError):
        while link.recv(1024):
            pass
    with suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()


def _send(link: socket.socket, frame: dict[str, Any]) -> None:
    link.sendall(json.dumps(frame).encode() + b"\n")


def pack(folder: str) -> bytes:
    """Return a folder as a compressed archive; empty for an empty folder."""
    if not os.listdir(folder):
        return b""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=".")
    return stream.getvalue()


def unpack(content: bytes, folder: str) -> None:
    """Put what :func:`pack` made into a folder; nothing can leave it."""
    if content:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Return ``host:port`` of ports that are free now.

    The kernel gives none of them to a connection, or to a server that asks for any
    port, so they stay free until the framework binds them. Nothing holds them, as a
    server without SO_REUSEADDR could not bind them then.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(host)) for _ in range(count)]
        return [f"{host}:{bound.getsockname()[1]}" for bound in sockets]


def _bound(host: str) -> socket.socket:
    ports = range(LOWEST, _first_of_kernel())
    for _ in range(_TRIES if ports else 0):
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with suppress(OSError):
            bound.bind((host, random.choice(ports)))  # noqa: S311  # no secret
            return bound
        bound.close()
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.bind((host, 0))
    return bound


def _first_of_kernel() -> int:
    """Return the first port that the kernel gives to connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as stream:
            return int(stream.read().split()[0])
    except (OSError, ValueError):
        return 32_768


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
