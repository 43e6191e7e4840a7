"""A worker in a barrier task of Spark: what runs on executors, which need not have this package.

It imports the standard library and pyspark only, and is pickled by value. It chooses a
port that any framework can bind, sends it to all workers by the barrier, and runs the
worker program, whose frames it sends to the driver over a connection. When that
connection ends, because the driver stopped the run or is gone, the worker ends, too.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

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
