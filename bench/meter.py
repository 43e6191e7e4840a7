"""Run a command and measure its whole process tree: wall, CPU seconds, peak memory.

``python -m bench.meter RESULT.json LOG CPUS COMMAND…``, a process of its own: it adopts
whatever the command leaves behind, so that the CPU time of daemons counts too.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_EVERY_S = 0.05
_LINGER_S = 20.0


@dataclass(frozen=True)
class Cost:
    """What a command cost. ``peak_bytes``: proportional set size, so that a page that
    processes share counts once; pages of mapped files are in it. ``load``: the
    machine's load average over the last minute when it began.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    load: float
    code: int


def measure(command: Sequence[str], environ: Mapping[str, str], log: Path, cpus: int) -> Cost:
    """Run ``command`` on ``cpus`` CPUs; what it writes goes to ``log``."""
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)
    meter = [sys.executable, "-m", "bench.meter", str(result), str(log), str(cpus), *command]
    subprocess.run(meter, env=dict(environ), cwd=Path(__file__).resolve().parents[1], check=True)
    return Cost(**json.loads(result.read_text()))


def _run(command: Sequence[str], log: Path) -> Cost:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    load = os.getloadavg()[0]
    tree = _Tree()
    with log.open("wb") as sink:
        began = time.monotonic()
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        tree.start()
        code = child.wait()
        wall = time.monotonic() - began
    adopted = _await_orphans()
    tree.stop()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    lost = sum(seconds for pid, seconds in tree.unwaited.items() if pid not in adopted)
    return Cost(wall, used.ru_utime + used.ru_stime + lost, tree.peak_bytes, load, code)


def _await_orphans() -> set[int]:
    """Wait for what the command left behind; return those processes, whose time counts
    like any child's.
    """
    adopted: set[int] = set()
    deadline = time.monotonic() + _LINGER_S
    while time.monotonic() < deadline:
        try:
            pid = os.waitpid(-1, os.WNOHANG)[0]
        except ChildProcessError:
            return adopted
        if pid:
            adopted.add(pid)
        else:
            time.sleep(0.02)
    print(
        "something that the command started still runs; its CPU time is not counted",
        file=sys.stderr,
    )
    return adopted


class _Tree(threading.Thread):
    """Looks at all processes below this one, twenty times a second.

    A parent that ignores SIGCHLD, as PySpark's daemon does, waits for none of its
    children: the time of these is in nobody's account, and ``unwaited`` keeps what was
    last seen of it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.unwaited: dict[int, float] = {}
        self._over = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self._over.wait(_EVERY_S):
            processes = me.children(recursive=True)
            self.peak_bytes = max(self.peak_bytes, sum(_pss(process.pid) for process in processes))
            for process in processes:
                self._note(process)

    def _note(self, process: psutil.Process) -> None:
        try:
            if process.pid in self.unwaited or _ignores_children(process.ppid()):
                times = process.cpu_times()
                self.unwaited[process.pid] = times.user + times.system
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            pass

    def stop(self) -> None:
        self._over.set()
        self.join()


def _ignores_children(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as lines:
            ignored = next(
                (int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")), 0
            )
    except OSError:
        return False
    return bool(ignored >> (signal.SIGCHLD - 1) & 1)


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return next(
                (1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0
            )
    except OSError:
        return 0  # it has ended


def main() -> None:
    result, log, cpus, *command = sys.argv[1:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cpus)])
    Path(result).write_text(json.dumps(asdict(_run(command, Path(log)))))


if __name__ == "__main__":
    main()
