"""Measures a process and all below it with psutil: memory, CPU, reads and writes, open
files, by role.

The role of a process comes from its command line and the role of its parent. Of a driver in
Spark the heap of its JVM, its Python and its workers are sums of these samples.
"""

from __future__ import annotations

import mmap
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import psutil

from cmsspark.base import dates
from cmsspark.settings.redaction import redacted
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import MOST_SAMPLES, Sample

#: The variable of the environment of a suite's step, by which its processes, also those
#: that became daemons, and its measured runs are recognised: ``RUN/NUMBER/``.
STEP_VARIABLE: Final = "CMSSPARK_PERF_STEP"
JAVA_DRIVER, JAVA_EXECUTOR, JAVA = "java_driver", "java_executor", "java"
PYTHON_DRIVER, PYTHON_DAEMON = "python_driver", "python_daemon"
PYTHON_WORKER, PYTHON = "python_worker", "python"
YARN_LAUNCHER, YARN_NODE_MANAGER = "yarn_launcher", "yarn_nodemanager"
OTHER = "other"
#: In the order of reports. What is before the underscore is its kind: Java, Python or YARN.
ROLES: Final = (
    *(JAVA_DRIVER, JAVA_EXECUTOR, PYTHON_DRIVER, PYTHON_DAEMON, PYTHON_WORKER),
    *(YARN_LAUNCHER, YARN_NODE_MANAGER, JAVA, PYTHON, OTHER),
)
_CONTAINER: Final = re.compile(r"container_(?:e\d+_)?\d{10,}_\d{4,}_\d{2,}_\d{6,}")
#: Main class → role.
_CLASSES: Final = (
    # It only makes the command line of what its further words name.
    ("org.apache.spark.launcher.Main", YARN_LAUNCHER),
    ("KubernetesExecutorBackend", JAVA_EXECUTOR),
    ("org.apache.spark.deploy.worker.DriverWrapper", JAVA_DRIVER),
    ("CoarseGrainedExecutorBackend", JAVA_EXECUTOR),
    ("org.apache.spark.deploy.yarn.ExecutorLauncher", YARN_LAUNCHER),
    ("org.apache.spark.deploy.yarn.ApplicationMaster", JAVA_DRIVER),
    ("org.apache.hadoop.yarn.server.nodemanager.NodeManager", YARN_NODE_MANAGER),
    ("org.apache.hadoop.yarn.server.nodemanager.containermanager", YARN_LAUNCHER),
)
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"
#: Main classes that are known by their end: YARN and Kubernetes have their own before it.
_BACKENDS: Final = ("CoarseGrainedExecutorBackend", "KubernetesExecutorBackend")
_LAUNCHERS: Final = (
    *("default_container_executor", "launch_container.sh", "container-executor"),
    *("spark-submit", "spark-class", "/opt/entrypoint.sh"),
)
_SHELLS: Final = ("sh", "bash", "dash", "tini")
#: Modules that fork the workers of an executor.
DAEMONS: Final = ("pyspark.daemon", "cmsspark.engines.quiet_daemon", "pyspark/daemon.py")


def find_role(name: str, words: Sequence[str], parent: str | None) -> str:
    """Return the role of a process. ``name``: its executable's; ``words``: its command line.

    ``parent``: the role of its parent; None for the root of the tree.
    """
    program = (words[0].rpartition("/")[2] if words else "") or name
    if program == "java" or name == "java":
        role = _java(words)
        # A child that is just being started is a copy of the JVM until it executes its program.
        return OTHER if role == parent and role in (JAVA_DRIVER, JAVA_EXECUTOR) else role
    # An interpreter of another name may run a Python file.
    is_script = len(words) > 1 and words[1].endswith(".py")
    if is_script or program.startswith(("python", "pypy")) or name.startswith(("python", "pypy")):
        return _python(words, parent)
    if program in _SHELLS or "container-executor" in program:
        text = " ".join(words)
        if _CONTAINER.search(text) or any(word in text for word in _LAUNCHERS):
            return YARN_LAUNCHER
    return OTHER


def find_container(words: Sequence[str], folder: str | None) -> str | None:
    """Return the id of the YARN container that a command line or a working folder
    names, else None.
    """
    for text in (*words, folder or ""):
        if match := _CONTAINER.search(text):
            return match[0]
    return None


def _java(words: Sequence[str]) -> str:
    for word in words[1:]:
        # Main classes are words of their own; the class path is one word with many names.
        if "/" in word or word.startswith("-"):
            continue
        if word == _SUBMIT:
            return YARN_LAUNCHER if _mode(words) == "cluster" else JAVA_DRIVER
        for name, role in _CLASSES:
            if word == name or (name in _BACKENDS and word.endswith(name)):
                return role
    return JAVA


def _mode(words: Sequence[str]) -> str:
    for position, word in enumerate(words):
        if word == "--deploy-mode" and position + 1 < len(words):
            return words[position + 1]
        if word.startswith("spark.submit.deployMode="):
            return word.partition("=")[2]
    return "client"


def _python(words: Sequence[str], parent: str | None) -> str:
    text = " ".join(words[:8])
    if parent == PYTHON_DAEMON:
        return PYTHON_WORKER
    if any(daemon in text for daemon in DAEMONS):
        return PYTHON_DAEMON
    if "pyspark.worker" in text or "pyspark/worker.py" in text:
        return PYTHON_WORKER
    if parent in (PYTHON_DRIVER, PYTHON_WORKER):
        return PYTHON_WORKER
    if parent in (None, JAVA_DRIVER, YARN_LAUNCHER):
        return PYTHON_DRIVER
    return PYTHON


#: The proportional and the unshared memory are measured in the third sample, then in
#: each sixth one if memory has changed by a tenth, and in each thirtieth one in any
#: case: the kernel walks all pages for them.
PSS_EACH: Final = 6
_PSS_CHANGE: Final = 0.1
_PSS_LATEST: Final = 30
_SHORT: Final = 60
#: Children are read of all processes in each n-th sample; between them only of those
#: with few threads, which are Python's daemons and shells: a JVM starts few processes,
#: and has many threads. The parents of all processes of the host are read in each n-th
#: sample: that costs more the more others work there.
_ALL_EACH: Final = 3
_HOST_EACH: Final = 60
_FEW_THREADS: Final = 8
#: Roles of scripts, which may become another program.
_BECOMES: Final = (OTHER, YARN_LAUNCHER)


class _Seen(msgspec.Struct):
    """What stays the same for a process, and its figures at the last sample."""

    process: psutil.Process
    ppid: int
    create_ms: int
    role: str
    short: str
    long: str
    container: str | None
    is_new: bool = True
    threads: int = 1
    cpu_seconds: float | None = None
    at_ms: int = 0


@dataclass
class TreeSampler:
    """Samples of the trees below ``roots`` for a run; each call of :meth:`sample` is a tick.

    A process that was seen below a root stays watched when its parent ends.
    ``left_out``: PIDs, with what is below them, that are not of the run: the monitor
    itself.
    """

    run: str
    roots: Sequence[int]
    left_out: Sequence[int] = ()
    host: str = field(default_factory=socket.gethostname)
    ticks: int = 0
    _seen: dict[int, _Seen] = field(default_factory=dict)
    #: Resident memory of all in the last sample; the last tick with proportional
    #: memory, and resident memory then.
    _rss_bytes: int = 0
    _pss_tick: int = 0
    _pss_rss_bytes: int = 0

    def __post_init__(self) -> None:
        # Some kernels are built without them.
        self._has_children_files = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        self._root_ids = {pid: self._created(pid) for pid in self.roots}

    def sample(self) -> list[ProcessSample]:
        """Return every process of the trees now, with one time for all.

        A process that ends meanwhile, or may not be read, is left out.
        """
        is_deep = self._is_pss_due()
        threads = sys.maxsize if self.ticks % _ALL_EACH == 0 else _FEW_THREADS
        is_whole = self.ticks % (_HOST_EACH if self._has_children_files else _ALL_EACH) == 0
        self.ticks += 1
        parents: dict[int, int] = psutil._ppid_map() if is_whole else self._known_parents(threads)
        # A number that was given to another process is that process no longer.
        self._seen = {
            pid: seen
            for pid, seen in self._seen.items()
            if pid in parents and seen.process.is_running()
        }
        below = self._below(parents)
        samples, time_ms = [], dates.now_ms()
        for pid in below:
            with suppress(psutil.Error, OSError, ValueError):
                samples.append(self._sample_process(pid, parents.get(pid, 0), is_deep, time_ms))
        self._rss_bytes = sum(sample.rss_bytes or 0 for sample in samples)
        if is_deep:
            self._pss_tick, self._pss_rss_bytes = self.ticks - 1, self._rss_bytes
        return samples

    def _is_pss_due(self) -> bool:
        """Return whether to measure proportional memory: of all processes, as a part of
        a sum means nothing.
        """
        if self.ticks % PSS_EACH != 2:
            return False
        changed = abs(self._rss_bytes - self._pss_rss_bytes)
        return (
            changed > _PSS_CHANGE * self._pss_rss_bytes
            or self.ticks - self._pss_tick >= _PSS_LATEST
        )

    def _below(self, parents: Mapping[int, int]) -> list[int]:
        """PIDs of the trees, parents before children."""
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        roots = [
            pid
            for pid in self.roots
            if pid in parents and self._created(pid) == self._root_ids[pid]
        ]
        below: dict[int, None] = {}
        queue = [*roots, *self._seen]
        while queue:
            pid = queue.pop(0)
            if pid not in below and pid not in self.left_out:
                below[pid] = None
                queue += children.get(pid, [])
        return list(below)

    def _known_parents(self, most_threads: int) -> dict[int, int]:
        """Process → parent, of the processes that were seen and of the children of
        those with so many threads.
        """
        parents = {pid: seen.ppid for pid, seen in self._seen.items()}
        queue = [pid for pid, seen in self._seen.items() if seen.threads <= most_threads]
        while queue:
            pid = queue.pop()
            for child in child_pids(pid):
                if parents.setdefault(child, pid) == pid and child not in self._seen:
                    queue.append(child)
        return parents

    def _created(self, pid: int) -> float | None:
        with suppress(psutil.Error, OSError):
            return float(psutil.Process(pid).create_time())
        return None

    def _sample_process(self, pid: int, ppid: int, is_deep: bool, time_ms: int) -> ProcessSample:
        seen = self._seen.get(pid)
        process = seen.process if seen else psutil.Process(pid)
        with process.oneshot():
            # A fork of a daemon becomes something else when it executes a program: its
            # role is determined twice. That of a script is determined each time:
            # spark-submit becomes the driver's JVM later.
            if seen is None or (seen.at_ms and (seen.is_new or seen.role in _BECOMES)):
                seen = self._seen[pid] = self._describe(process, ppid, seen)
            if process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.ZombieProcess(pid)
            now = dates.now_ms()
            memory, times = process.memory_info(), process.cpu_times()
            cpu = float(times.user + times.system)
            # Since the last sample; in the first one since the process began.
            since = seen.create_ms if seen.cpu_seconds is None else seen.at_ms
            used = max(0.0, cpu - (seen.cpu_seconds or 0.0))
            sample = ProcessSample(
                self.run,
                time_ms,
                self.host,
                pid,
                ppid,
                seen.create_ms,
                seen.role,
                cpu_percent=round(used * 100_000 / (now - since), 1) if now > since else None,
                cpu_seconds=round(cpu, 2),
                elapsed_seconds=round((now - seen.create_ms) / 1000, 1),
                rss_bytes=memory.rss,
                shared_bytes=memory.shared,
                virtual_bytes=memory.vms,
                threads=process.num_threads(),
                container=seen.container,
                short_command=seen.short,
                long_command=None if seen.at_ms else seen.long,
            )
        with suppress(psutil.Error, OSError):
            disk = process.io_counters()
            sample.read_bytes, sample.write_bytes = disk.read_bytes, disk.write_bytes
        with suppress(psutil.Error, OSError):
            sample.fds = process.num_fds()
        if is_deep:
            with suppress(psutil.Error, OSError, ValueError, IndexError):
                full = process.memory_full_info()
                sample.pss_bytes, sample.uss_bytes = full.pss, full.uss
                # psutil has no figure of mapped files without those of shared memory.
                with open(
                    f"/proc/{process.pid}/status", encoding="ascii", errors="replace"
                ) as stream:
                    sizes = [line.split()[1] for line in stream if line.startswith("RssFile:")]
                sample.mapped_bytes = int(sizes[0]) * 1024 if sizes else None
        seen.cpu_seconds, seen.is_new, seen.at_ms = cpu, not seen.at_ms, now
        seen.threads = sample.threads or 1
        return sample

    def _describe(self, process: psutil.Process, ppid: int, before: _Seen | None) -> _Seen:
        # A name may be any bytes; those that are no UTF-8 fit into no database.
        words = [_as_text(word) for word in process.cmdline()]
        name = _as_text(process.name())
        above = self._seen.get(ppid)
        is_root = process.pid in self.roots
        parent = None if is_root else above.role if above else OTHER
        folder = None
        with suppress(psutil.Error, OSError):
            folder = _as_text(process.cwd())
        container = find_container(words, folder) or (
            above.container if above and not is_root else None
        )
        role = find_role(name, words, parent)
        if before is not None and before.role == role:
            before.is_new = False
            return before
        long = redacted(words) or f"[{name}]"
        if above and not is_root and role.startswith("java") and long == above.long:
            # A JVM that starts a program is two for a moment: the second one has its
            # pages, and shows them again.
            raise psutil.NoSuchProcess(process.pid)
        created = int(process.create_time() * 1000)
        return _Seen(process, ppid, created, role, _short(words, name), long, container)


def child_pids(pid: int) -> list[int]:
    """Return the children of each thread of a process.

    psutil reads the parents of all processes of the host for it, 15 µs of CPU for each.
    """
    children: list[int] = []
    with suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"{thread.path}/children", "rb") as file:
                children += map(int, file.read().split())
    return children


def _as_text(name: str) -> str:
    """Return a name with ``\\xff`` for a byte that is no UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _short(words: Sequence[str], name: str) -> str:
    """Return the program, and what it runs: a main class, a module or a script."""
    if not words:
        return name
    program = redacted([words[0].rpartition("/")[2]])
    remaining = iter(words[1:])
    for word in remaining:
        if word in ("-cp", "-classpath", "--class-path", "-X", "-W"):
            next(remaining, None)
        elif word in ("-m", "-c"):
            following = next(remaining, "")
            return f"{program} {word} {redacted([following]) if word == '-m' else '…'}"[:_SHORT]
        elif not word.startswith("-"):
            return redacted([f"{program} {word.rpartition('/')[2]}"])[:_SHORT]
    return program[:_SHORT]


class DriverSamples:
    """Makes a ``Sample`` of each look at the processes below ``root``, which is
    spark-submit and becomes the driver's JVM.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._counters = JvmCounters(root)
        self._cpu: dict[int, float] = {}
        self.samples: list[Sample] = []
        #: The largest memory of the JVM and of all Pythons, in the names of Spark. It would
        #: start ``pgrep`` for each process and each sample, which costs several percent of
        #: a core.
        self.peaks: dict[str, int] = {}

    def take(self, processes: Sequence[ProcessSample]) -> Sample | None:
        """Add a sample of the processes at one time; None where the root is gone."""
        # One without pages is ending: nothing of it is a figure any more.
        processes = [process for process in processes if process.rss_bytes]
        for process in processes:
            self._cpu[process.pid] = process.cpu_seconds or 0.0
        root = next((process for process in processes if process.pid == self._root), None)
        if root is None:
            return None
        sample = Sample(root.time_ms, root.rss_bytes, heap_bytes=self._counters.heap())
        sample.jvm_moved_bytes = _transferred(root.pid, "read_chars", "write_chars")
        with suppress(OSError):
            sample.host_load = round(os.getloadavg()[0], 1)
        by_role: dict[str, list[ProcessSample]] = {}
        for process in processes:
            by_role.setdefault(process.role, []).append(process)
        drivers, workers = by_role.get(PYTHON_DRIVER, []), by_role.get(PYTHON_WORKER, [])
        if drivers:
            driver = max(drivers, key=_rss)
            sample.driver_python_rss = driver.rss_bytes
            sample.python_written_bytes = _transferred(driver.pid, "write_chars")
        sample.workers, sample.workers_rss = len(workers), sum(map(_rss, workers))
        if workers:
            largest = max(workers, key=_rss)
            sample.largest_worker, sample.largest_worker_rss = largest.pid, largest.rss_bytes
        self._note_peaks("JVM", [root])
        self._note_peaks("Python", [*drivers, *workers, *by_role.get(PYTHON_DAEMON, [])])
        sample.cpu_ms = round(1000 * sum(self._cpu.values()))
        self.samples.append(sample)
        if len(self.samples) >= 2 * MOST_SAMPLES:
            self.samples = thinned(self.samples)
        return sample

    def end(self) -> list[Sample]:
        """Return the samples, at most as many as are kept."""
        return thinned(self.samples) if len(self.samples) > MOST_SAMPLES else self.samples

    def _note_peaks(self, kind: str, processes: Sequence[ProcessSample]) -> None:
        for name, value in (
            (
                f"ProcessTree{kind}VMemory",
                sum(process.virtual_bytes or 0 for process in processes),
            ),
            (f"ProcessTree{kind}RSSMemory", sum(map(_rss, processes))),
        ):
            self.peaks[name] = max(value, self.peaks.get(name, 0))


def _rss(process: ProcessSample) -> int:
    return process.rss_bytes or 0


def _transferred(pid: int, *names: str) -> int | None:
    """Return the sum of counters of bytes that a process passed to the system; None where
    they cannot be read.
    """
    with suppress(psutil.Error):
        counters = psutil.Process(pid).io_counters()
        return sum(int(getattr(counters, name)) for name in names)
    return None


def total_memory(sample: Sample) -> int:
    """Return all memory of a sample."""
    return sum(
        value or 0
        for value in (sample.driver_jvm_rss, sample.driver_python_rss, sample.workers_rss)
    )


def thinned(samples: list[Sample]) -> list[Sample]:
    """Return half of the samples: of each two the one with more memory."""
    return [
        max(samples[first : first + 2], key=total_memory) for first in range(0, len(samples), 2)
    ]


_MAGIC: Final = b"\xca\xfe\xc0\xc0"
_USED: Final = re.compile(rb"sun\.gc\.generation\.\d+\.space\.\d+\.used")
_LONG: Final = ord("J")


class JvmCounters:
    """The counters of a JVM. ``heap()`` is None where they cannot be read: another JVM,
    another user, or none yet.
    """

    def __init__(self, pid: int, folder: Path = Path("/tmp")) -> None:  # noqa: S108 -- HotSpot uses no other
        self._pid, self._folder = pid, folder
        self._map: mmap.mmap | None = None
        self._used: list[int] = []

    def heap(self) -> int | None:
        """Used bytes of the heap, some 50 ms old."""
        if self._map is None:
            self._open()
        if self._map is None:
            return None
        return sum(int(struct.unpack_from("<q", self._map, offset)[0]) for offset in self._used)

    def _open(self) -> None:
        for path in self._folder.glob(f"hsperfdata_*/{self._pid}"):
            with suppress(OSError, ValueError, struct.error), path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if self._find(mapped):
                    self._map = mapped
                    return
                mapped.close()

    def _find(self, data: mmap.mmap) -> bool:
        """Find the offsets of the counters; False while the JVM still makes them."""
        if data[:4] != _MAGIC or data[4] != 1 or not data[7]:
            return False
        offset, count = struct.unpack_from("<ii", data, 24)
        used = []
        for _ in range(count):
            length, name_at, vector = struct.unpack_from("<iii", data, offset)
            value_at = struct.unpack_from("<i", data, offset + 16)[0]
            end = data.find(b"\0", offset + name_at)
            name = data[offset + name_at : end]
            if data[offset + 12] == _LONG and not vector and _USED.fullmatch(name):
                used.append(offset + value_at)
            offset += length
        self._used = used
        return bool(used)
