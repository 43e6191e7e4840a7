"""Runs commands of ours in forks of one Python that has imported the package: a process
for each, without its start.

``python -m tests.command_server SOCKET`` serves until its standard input ends. A
request is JSON with ``module``, ``words``, ``environ`` and ``folder``, and three
descriptors; ``module.main()`` runs in a fork with these. The answers are the process id
and, at the end, the exit code, a message each.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

#: What commands import before they do anything.
LOADED = (
    "cmsspark.main",
    "cmsspark.submit.job_help",
    "cmsspark.publish.cli",
    "pyarrow.dataset",
    "pyarrow.parquet",
)
MOST_BYTES = 1 << 20


def serve(address: str) -> None:
    """Answer requests, each in a process of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(connection)
            connection.close()


def answer(connection: socket.socket) -> None:
    """Start a command, and send its process id and its code; neither this process nor
    the command's returns.
    """
    text, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, 3)
    request = json.loads(text)
    if command := os.fork():
        connection.sendall(str(command).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        connection.sendall(str(code).encode())
        os._exit(0)
    connection.close()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    os.chdir(request["folder"])
    sys.argv[1:] = request["words"]
    code = code_of(importlib.import_module(request["module"]).main)
    # As at the end of a Python, but that modules are not taken apart one by one: most
    # of a fork's time.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def code_of(main: Callable[[], Any]) -> int:
    """Run a program, and return the code that its process would end with."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    # What is loaded is nothing to collect: a fork that looks through it copies it.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    serve(sys.argv[1])
    shutil.rmtree(os.path.dirname(sys.argv[1]))
