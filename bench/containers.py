"""What the containers of a test cluster use: CPU seconds and peaks of memory, sampled from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_EVERY_S = 0.1
_EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_MASTERS = ("org.apache.spark.deploy.yarn.ExecutorLauncher", "org.apache.spark.deploy.yarn.ApplicationMaster")
#: The kinds of processes that :class:`Containers` tells apart.
KINDS = ("executor", "python", "master", "datanode", "daemon")


@dataclass
class Use:
    """CPU seconds of all processes of a kind, and the largest sum of their memory (proportional set size)."""

    cpu_s: float = 0.0
    peak_bytes: int = 0


@dataclass
class Containers(threading.Thread):
    """Samples the processes that live in the folder of a cluster until :meth:`stop`.

    Python's workers die unwaited, so the time of each process is what was last seen of it. ``daemons``: the kind of
    each daemon by its process.
    """

    folder: Path
    daemons: Callable[[], dict[int, str]]
    seen: dict[tuple[int, float], tuple[str, float]] = field(default_factory=dict)
    before: dict[tuple[int, float], float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._kinds: dict[tuple[int, float], str | None] = {}

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.look()

    def stop(self) -> dict[str, Use]:
        """End the sampling; return the use of each kind of process since the start."""
        self._over.set()
        self.join()
        uses = {kind: Use(0.0, self.peaks.get(kind, 0)) for kind in KINDS}
        for identity, (kind, seconds) in self.seen.items():
            uses[kind].cpu_s += seconds - self.before.get(identity, 0.0)
        return uses

    def look(self) -> None:
        """Take one sample."""
        daemons = self.daemons()
        memory: dict[str, int] = {}
        for process in psutil.process_iter():
            try:
                identity = (process.pid, process.create_time())
                if identity not in self._kinds:
                    self._kinds[identity] = daemons.get(process.pid) or self._kind(process)
                kind = self._kinds[identity]
                if kind is None:
                    continue
                times = process.cpu_times()
                self.seen[identity] = (kind, times.user + times.system)
                # A daemon lived before the run.
                if process.pid in daemons:
                    self.before.setdefault(identity, times.user + times.system)
                memory[kind] = memory.get(kind, 0) + _pss(process.pid)
            except (psutil.Error, OSError):
                continue
        for kind, size in memory.items():
            self.peaks[kind] = max(self.peaks.get(kind, 0), size)

    def _kind(self, process: psutil.Process) -> str | None:
        if not process.cwd().startswith(str(self.folder)):
            return None
        words = process.cmdline()
        if not words:
            return None
        if words[0].endswith("java"):
            if _EXECUTOR in words:
                return "executor"
            return "master" if any(name in words for name in _MASTERS) else None
        return "python" if "python" in words[0] and "pyspark" in " ".join(words) else None


def _pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
