"""Commands of ours as a person runs them, each in a process: without the seconds that a
Python takes to start.

Where the start is what is tested, or what a new Python imports, a test starts one itself.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.light_jvm import LIGHT

TOP = Path(__file__).resolve().parents[1]
CMSSPARK, RUN_SPARK = "cmsspark.main", "cmsspark.submit"
#: The same for lines of a shell: ``python -S -E CLIENT SOCKET MODULE WORD…``.
CLIENT = TOP / "tests" / "command_client.py"
#: Options of run_spark for a JVM that lives shortly.
LIGHT_JVM = ("--conf", f"spark.driver.extraJavaOptions={LIGHT}")


@functools.cache
def server() -> tuple[str, subprocess.Popen[str]]:
    """The address of the server of this process of tests; it ends with this process."""
    address = f"{tempfile.mkdtemp(prefix='cmsspark-commands-')}/socket"
    command = [sys.executable, "-m", "tests.command_server", address]
    process = subprocess.Popen(
        command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return address, process


def run_command(
    module: str, *words: str, folder: Path, environ: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` of a module with these words, and return how it ended and what it printed."""
    request = {"module": module, "words": words, "environ": dict(environ), "folder": str(folder)}
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
    ):
        connection.connect(server()[0])
        descriptors = [stream.fileno() for stream in (nothing, out, err)]
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        connection.settimeout(timeout)
        process = int(connection.recv(100))
        try:
            code = int(connection.recv(100))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            raise
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess([module, *words], code, out.read(), err.read())
