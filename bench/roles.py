"""CPU seconds and memory of the parts of an application, sampled from ``/proc`` by the
roles of its processes.

The parts of a JVM are told by the names of its threads: compilers, collectors, tasks, network.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_EVERY_S: Final = 0.1
_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: Main classes of JVMs, by their last word.
_CLASSES: Final = {
    "org.apache.spark.launcher.Main": "launcher JVM",
    "org.apache.spark.deploy.SparkSubmit": "driver JVM",
    "org.apache.spark.deploy.yarn.ExecutorLauncher": "master JVM",
    "org.apache.spark.deploy.yarn.ApplicationMaster": "master JVM",
    "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend": "executor JVM",
}
#: The parts of a JVM by the beginning of a thread's name. Its main thread is called java.
_THREADS: Final = (
    (("C1 Compiler", "C2 Compiler"), "JIT"),
    (("GC Thread", "G1 ", "VM Thread"), "GC"),
    (("Executor task", "stdout writer", "Writer for"), "tasks"),
    (
        ("shuffle-", "rpc-", "netty-", "files-client", "block-manager", "IPC ", "nioEventLoop"),
        "network",
    ),
)
PARTS: Final = ("JIT", "GC", "tasks", "network", "start, rest")
#: The monitor is a fork of run_spark that names itself.
_MONITOR: Final = "cmsspark-watch"
DAEMONS: Final = ("DataNode", "daemons")
CONTAINER_SCRIPTS: Final = "containers' scripts"
#: The roles of the client and of containers, in the order of a table.
IN_CLIENT: Final = (
    "run_spark",
    "monitor",
    "scripts",
    "launcher JVM",
    "driver JVM",
    "driver Python",
)
IN_CONTAINERS: Final = (
    CONTAINER_SCRIPTS,
    "master JVM",
    "executor JVM",
    "Python daemon",
    "Python workers",
)


@dataclass
class Use:
    """CPU seconds of all processes of a role, and the largest sum of their memory
    (proportional set size).
    """

    cpu_s: float = 0.0
    peak_bytes: int = 0
    #: CPU seconds of a JVM's threads, by part.
    threads: dict[str, float] = field(default_factory=dict)


@dataclass
class _Process:
    parent: int
    role: str
    is_final: bool
    seconds: float = 0.0
    before: float = 0.0
    threads: dict[int, tuple[str, float]] = field(default_factory=dict)


@dataclass
class Roles(threading.Thread):
    """Samples what runs below ``bench.meter`` and the NodeManagers until :meth:`stop`.

    Python's workers die unwaited, so the time of each process is what was last seen of
    it. ``daemons``: the kind of each daemon by its process; what a NodeManager starts
    belongs to the application.
    """

    daemons: Callable[[], dict[int, str]]
    processes: dict[tuple[int, int], _Process] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._births: dict[int, int] = {}

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.look()

    def stop(self) -> dict[str, Use]:
        """End the sampling; return the use of each role since the start."""
        self._over.set()
        self.join()
        uses = {
            role: Use(0.0, self.peaks.get(role, 0))
            for role in (*IN_CLIENT, *IN_CONTAINERS, *DAEMONS)
        }
        for process in self.processes.values():
            use = uses.get(process.role)
            if use is None:
                continue
            use.cpu_s += process.seconds - process.before
            for part, seconds in process.threads.values():
                use.threads[part] = use.threads.get(part, 0.0) + seconds
        return uses

    def look(self) -> None:
        """Take one sample."""
        daemons = self.daemons()
        stats = {
            int(name): stat
            for name in os.listdir("/proc")
            if name.isdigit() and (stat := _stat(int(name)))
        }
        self._births = {pid: stat[1] for pid, stat in stats.items()}
        memory: dict[str, int] = {}
        for pid in sorted(stats, key=lambda pid: stats[pid][1]):
            parent, birth, seconds = stats[pid]
            process = self._process(pid, parent, birth, seconds, daemons)
            if process is None:
                continue
            process.seconds = seconds
            if process.role.endswith("JVM"):
                process.threads.update(_threads(pid))
            memory[process.role] = memory.get(process.role, 0) + _pss(pid)
        for role, size in memory.items():
            self.peaks[role] = max(self.peaks.get(role, 0), size)

    def _process(
        self, pid: int, parent: int, birth: int, seconds: float, daemons: dict[int, str]
    ) -> _Process | None:
        """Return the process where it belongs to the application or the cluster; its
        role until it is final.
        """
        process = self.processes.get((pid, birth))
        if process is None:
            above = self._above(parent)
            if pid in daemons:
                process = _Process(parent, daemons[pid], is_final=True, before=seconds)
            elif parent == os.getpid() and "bench.meter" in _words(pid):
                process = _Process(parent, "meter", is_final=True)
            elif above is None:
                return None
            else:
                process = _Process(parent, "other", is_final=False)
            self.processes[pid, birth] = process
        if not process.is_final:
            above = self._above(process.parent)
            process.role, process.is_final = role_of(
                _words(pid), "" if above is None else above.role
            )
            if _name(pid) == _MONITOR:
                process.role, process.is_final = "monitor", True
        return process

    def _above(self, parent: int) -> _Process | None:
        return self.processes.get((parent, self._births.get(parent, -1)))


def role_of(words: Sequence[str], above: str) -> tuple[str, bool]:
    """Return the role of a process by its command line and its parent's role, and
    whether it stays so.

    What was just forked has the command line of its parent, and shells execute other programs.
    """
    program = words[0].rpartition("/")[2] if words else ""
    scripts = CONTAINER_SCRIPTS if above in (*DAEMONS, *IN_CONTAINERS) else "scripts"
    if program == "java":
        role = next((_CLASSES[word] for word in words if word in _CLASSES), "other")
        # A child of a JVM is its copy until it executes a program.
        return (scripts, False) if role == above else (role, True)
    if above in ("Python daemon", "Python workers"):
        return "Python workers", True
    if program.startswith("python"):
        pythons = {
            "executor JVM": "Python daemon",
            "driver JVM": "driver Python",
            "meter": "run_spark",
        }
        return pythons.get(above, scripts), above in ("executor JVM", "driver JVM")
    return scripts, False


def _stat(pid: int) -> tuple[int, int, float] | None:
    """Return a process's parent, start in ticks and CPU seconds; None for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS


def _threads(pid: int) -> dict[int, tuple[str, float]]:
    """Return (part, CPU seconds) of each thread of a JVM."""
    threads = {}
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        part = next((part for starts, part in _THREADS if name.startswith(starts)), PARTS[-1])
        threads[int(path.parent.name)] = part, (int(fields[11]) + int(fields[12])) / _TICKS
    return threads


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return next(
                (1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0
            )
    except OSError:
        return 0
