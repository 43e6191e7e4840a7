"""The program beside each training script: it starts the script, passes its lines on,
and leaves nothing running.

It runs in a process of this host, in a barrier task of Spark and in a pod of
Kubernetes. Hosts of tasks and images of pods need not have this package: this file is
sent to them, so it imports the standard library only.

A *job* describes one worker (JSON): ``rank``, ``addresses`` (``host:port`` of all
workers), ``script``, ``arguments``, ``output`` (a folder), ``run``, ``attempt``,
``cpus``, ``environment`` (of the user), ``secrets`` (name → key → value),
``secrets_folder`` (where they are files, too, or null), ``files`` (the folder of
--files, or null), ``grace`` (seconds between SIGTERM and SIGKILL).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

#: Bytes of a line; a longer one is cut into several.
LINE_BYTES: Final = 65_536
#: Shorter values are no secrets: blanking "1" or "true" would make logs unreadable.
SECRET_LENGTH: Final = 6
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_ENVIRONMENT_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
Frame = dict[str, Any]


def worker_environment(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables by which a script finds the other workers: of TensorFlow, of
    JAX, of PyTorch, and ours.

    Each worker has one port, which its framework may use; the coordinator is worker 0.
    """
    rank, addresses = int(job["rank"]), list(job["addresses"])
    host, _, port = addresses[0].rpartition(":")
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
    own_host = addresses[rank].rpartition(":")[0]
    bind = addresses[0] if own_host.startswith("127.") else f"0.0.0.0:{port}"
    cpus = str(job["cpus"])
    return {
        "TF_CONFIG": json.dumps(cluster),
        "JAX_COORDINATOR_ADDRESS": addresses[0],
        "JAX_COORDINATOR_BIND_ADDRESS": bind,
        "JAX_NUM_PROCESSES": str(len(addresses)),
        "JAX_PROCESS_ID": str(rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(addresses)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        # Threads of OpenMP, BLAS and JAX: several workers on one host would get in each
        # other's way.
        "OMP_NUM_THREADS": cpus,
        "OPENBLAS_NUM_THREADS": cpus,
        "NPROC": cpus,
        "CMSSPARK_TRAIN_RUN": str(job["run"]),
        "CMSSPARK_TRAIN_ATTEMPT": str(job["attempt"]),
        "CMSSPARK_TRAIN_RANK": str(rank),
        "CMSSPARK_TRAIN_ADDRESSES": ",".join(addresses),
        "CMSSPARK_TRAIN_OUTPUT": str(job["output"]),
        "PYTHONUNBUFFERED": "1",
    }


def files_environment(folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a script finds the files that travel with it: they
    can be imported, too.
    """
    path = [folder, *([environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else [])]
    return {"CMSSPARK_TRAIN_FILES": folder, "PYTHONPATH": os.pathsep.join(path)}


def secret_values(secrets: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the texts that no log may contain: the values and their lines, the longest first."""
    values = {value.strip() for keys in secrets.values() for value in keys.values()}
    lines = {line.strip() for value in values for line in value.splitlines()}
    return sorted(
        (text for text in values | lines if len(text) >= SECRET_LENGTH), key=len, reverse=True
    )


def blanked(text: str, values: Iterable[str]) -> str:
    """``text`` with secrets replaced by ``***``."""
    for value in values:
        text = text.replace(value, "***")
    return text


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send this process a signal when its parent is gone; send it now
    if that already happened.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def list_children(pid: int) -> list[int]:
    """Return the processes whose parent is ``pid``."""
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", encoding="latin-1") as stream,
            ):
                if int(stream.read().rpartition(")")[2].split()[1]) == pid:
                    children.append(int(name))
    return children


class Script:
    """The script of one worker as a process group of its own."""

    def __init__(self, job: Mapping[str, Any], python: str = sys.executable) -> None:
        self._grace = float(job["grace"])
        self._values = secret_values(job["secrets"])
        self._stopping = threading.Event()
        environment = {**os.environ, **job["environment"], **worker_environment(job)}
        for keys in job["secrets"].values():
            usable = {
                name: value for name, value in keys.items() if _ENVIRONMENT_NAME.fullmatch(name)
            }
            environment |= {
                name: value.removesuffix("\n")
                for name, value in usable.items()
                if "\0" not in value
            }
        if job.get("secrets_folder"):
            environment["CMSSPARK_TRAIN_SECRETS"] = str(job["secrets_folder"])
        if job.get("files"):
            environment |= files_environment(job["files"], environment)
        os.makedirs(job["output"], exist_ok=True)
        # A script of an attempt whose launcher was killed may still be there, for the time
        # of grace. Not every file system has locks.
        self._folder = os.open(job["output"], os.O_RDONLY)
        with suppress(OSError):
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        # Orphans of the script become children of this process, which ends them.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        parent = os.getpid()
        # An absolute path: a name that begins with a dash would be an option.
        self.process = subprocess.Popen(
            [python, os.path.abspath(job["script"]), *job["arguments"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
        )

    def frames(self) -> Iterator[Frame]:
        """``started`` with the process's id, ``line`` for each line of the script,
        ``code`` at its end.
        """
        yield {"started": self.process.pid}
        for line in self._lines():
            yield {"line": blanked(line, self._values)}
        code = self.process.wait()
        self._end_group()
        os.close(self._folder)
        yield {"code": code, "stopped": self._stopping.is_set()}

    def stop(self) -> None:
        """SIGTERM to the script's group, SIGKILL after the time of grace. Returns at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._signal(signal.SIGTERM)
        killer = threading.Timer(self._grace, self._signal, (signal.SIGKILL,))
        killer.daemon = True
        killer.start()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _lines(self) -> Iterator[str]:
        """Lines until the script ends, and what is then in the pipe: a process that it
        left behind may hold it open.
        """
        assert self.process.stdout is not None
        descriptor, partial_line = self.process.stdout.fileno(), b""
        ended = threading.Thread(target=self._close_after_end, daemon=True)
        ended.start()
        while chunk := os.read(descriptor, LINE_BYTES):
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")
            if len(partial_line) >= LINE_BYTES:
                yield partial_line.decode("utf-8", "replace")
                partial_line = b""
        if partial_line:
            yield partial_line.decode("utf-8", "replace")

    def _close_after_end(self) -> None:
        # WNOWAIT: the main thread collects the exit code.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        self._end_group()

    def _end_group(self) -> None:
        """End all processes that the script left: of its group, and orphans that left the group."""
        self._signal(signal.SIGKILL)
        for _ in range(50):
            remaining = [pid for pid in list_children(os.getpid()) if pid != self.process.pid]
            for pid in remaining:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            if not remaining:
                return


def run(
    job: Mapping[str, Any],
    emit: Callable[[Frame], None],
    stop_when: Callable[[], object] | None = None,
) -> int:
    """Run a worker's script to its end; its exit code, negative for a signal.

    ``stop_when`` runs in a thread; the script is stopped when it returns. So do SIGTERM
    and SIGINT.
    """
    script = Script(job)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *ignored: script.stop())
    if stop_when is not None:

        def watch() -> None:
            stop_when()
            script.stop()

        threading.Thread(target=watch, daemon=True).start()
    code = 0
    for frame in script.frames():
        code = frame.get("code", code)
        # The reader is gone with the launcher: the script must end all the same.
        try:
            emit(frame)
        except OSError:
            script.stop()
    return code


def main() -> None:
    """Read a job from stdin and write frames to stdout, a line of JSON each; stop the
    script when stdin ends.
    """
    die_with_parent(signal.SIGTERM, int(sys.argv[1]))
    job = json.loads(sys.stdin.readline())

    def emit(frame: Frame) -> None:
        sys.stdout.write(json.dumps(frame) + "\n")
        sys.stdout.flush()

    code = run(job, emit, lambda: sys.stdin.read())
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
