"""Samples the processes of a run on this host: memory of the JVM, the driver's Python and the workers.

It reads ``/proc`` itself, so that every installation measures; ``cmsspark[monitor]`` stores each process in detail.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cmsspark.apps.monitor.spark_jvm import JvmCounters
from cmsspark.base import clock
from cmsspark.store.run_metrics import MOST_SAMPLES, Sample

#: Seconds between samples, in the first minute and later.
_SHORT_S, _LONG_S, _SHORT_RUN_S = 1.0, 5.0, 120.0
#: A sample costs at most this share of one core.
_SHARE: Final = 0.005
_DAEMONS: Final = (b"pyspark.daemon", b"pyspark/daemon", b"cmsspark.engines.quiet_daemon")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
#: The JVM has many threads, each of which may have children: they are searched in each n-th sample.
_NEW_CHILDREN: Final = 3


class TreeReader:
    """The processes below ``root``, which is spark-submit and becomes the driver's JVM."""

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, proc
        self._counters = JvmCounters(root)
        self._below_jvm: list[int] = []
        self._daemons: dict[int, bool] = {}
        self._cpu: dict[int, int] = {}
        self._looks = 0
        self._virtual: dict[int, int] = {}
        #: The largest memory of the JVM, of all Pythons, and of other children of the JVM, in the names of Spark. It
        #: would start ``pgrep`` for each process and each sample, which costs several percent of a core.
        self.peaks: dict[str, int] = {}

    def sample(self) -> Sample | None:
        """Return a sample of the processes; None where the root is gone."""
        root_rss = self._rss(self._root)
        if root_rss is None:
            return None
        sample = Sample(clock.now_ms())
        sample.driver_jvm_rss, sample.heap_bytes = root_rss, self._counters.heap()
        pythons, daemons = self._children_of_jvm()
        sample.jvm_moved_bytes = self._transferred(self._root, b"rchar:", b"wchar:")
        python_rss = {pid: rss for pid in [*pythons, *daemons] if (rss := self._rss(pid)) is not None}
        driver = max((pid for pid in pythons if pid in python_rss), key=lambda pid: python_rss[pid], default=None)
        if driver is not None:
            sample.driver_python_rss = python_rss[driver]
            sample.python_written_bytes = self._transferred(driver, b"wchar:")
        workers = {
            pid: rss for daemon in daemons for pid in self._children(daemon) if (rss := self._rss(pid)) is not None
        }
        sample.workers, sample.workers_rss = len(workers), sum(workers.values())
        if workers:
            sample.largest_worker = max(workers, key=lambda pid: workers[pid])
            sample.largest_worker_rss = workers[sample.largest_worker]
        self._note_peaks("JVM", {self._root: root_rss})
        self._note_peaks("Python", {**python_rss, **workers})
        sample.cpu_ms = sum(self._cpu.values()) * 1000 // _TICKS
        return sample

    def _children_of_jvm(self) -> tuple[list[int], list[int]]:
        """Return the driver's Python, and daemons of Python workers."""
        if self._looks % _NEW_CHILDREN == 0:
            self._below_jvm = self._children(self._root)
        self._looks += 1
        for pid in self._below_jvm:
            if pid not in self._daemons:
                with suppress(OSError):
                    words = (self._proc / str(pid) / "cmdline").read_bytes()
                    # A child that is just being started is a copy of the JVM, until it executes its program.
                    if not _is_java(words):
                        self._daemons[pid] = any(name in words for name in _DAEMONS)
        daemons = [pid for pid in self._below_jvm if self._daemons.get(pid)]
        return [pid for pid in self._below_jvm if self._daemons.get(pid) is False], daemons

    def _transferred(self, pid: int, *names: bytes) -> int | None:
        """Return the sum of counters of bytes that a process passed to the system; None where they cannot be read."""
        with suppress(OSError, ValueError):
            words = (self._proc / str(pid) / "io").read_bytes().split()
            counters = dict(zip(words[::2], words[1::2], strict=True))
            return sum(int(counters[name]) for name in names if name in counters)
        return None

    def _note_peaks(self, kind: str, rss: Mapping[int, int]) -> None:
        virtual = sum(self._virtual.get(pid, 0) for pid in rss)
        for name, value in ((f"ProcessTree{kind}VMemory", virtual), (f"ProcessTree{kind}RSSMemory", sum(rss.values()))):
            self.peaks[name] = max(value, self.peaks.get(name, 0))

    def _children(self, pid: int) -> list[int]:
        found: list[int] = []
        with suppress(OSError):
            for task in os.scandir(self._proc / str(pid) / "task"):
                with suppress(OSError), open(f"{task.path}/children", "rb") as file:
                    found += map(int, file.read().split())
        return found

    def _rss(self, pid: int) -> int | None:
        """Resident bytes of a process, whose CPU time is noted; None for one that has ended."""
        try:
            with open(self._proc / str(pid) / "stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):
                return None
            # Children that were waited for are in it: workers that ended count.
            self._cpu[pid] = sum(int(fields[number]) for number in (11, 12, 13, 14))
            self._virtual[pid] = int(fields[20])
            # One without pages is ending: nothing of it is a figure any more.
            return int(fields[21]) * _PAGE or None
        except (OSError, ValueError, IndexError):
            return None


class Sampler(threading.Thread):
    """Samples until ``stop``; ``also`` is called after each sample."""

    def __init__(self, reader: TreeReader, also: Callable[[Sample], None] | None = None) -> None:
        super().__init__(daemon=True, name="cmsspark-measure")
        self.samples: list[Sample] = []
        self._reader, self._also = reader, also
        self._over = threading.Event()
        self._cost = 0.0

    def run(self) -> None:
        began = time.monotonic()
        cost = 0.0
        while True:
            usual = _SHORT_S if time.monotonic() - began < _SHORT_RUN_S else _LONG_S
            if self._over.wait(max(usual, cost / _SHARE)):
                return
            # A measurement never ends a run: whatever goes wrong ends the measurement only.
            with suppress(Exception):
                self.look()
            cost = max(cost * 0.9, self._cost)

    def look(self) -> None:
        """Take a sample now."""
        before = time.thread_time()
        sample = self._reader.sample()
        # Without what is called after it, which limits itself: polls of REST are rarer, and the first one has imports.
        self._cost = time.thread_time() - before
        if sample is not None:
            self.samples.append(sample)
            if len(self.samples) >= 2 * MOST_SAMPLES:
                self.samples = thinned(self.samples)
            if self._also is not None:
                self._also(sample)

    @property
    def peaks(self) -> dict[str, int]:
        """Peaks of the process trees, in the names of Spark."""
        return self._reader.peaks

    def stop(self) -> list[Sample]:
        """End, and return the samples."""
        self._over.set()
        self.join(5)
        return thinned(self.samples) if len(self.samples) > MOST_SAMPLES else self.samples


def _is_java(cmdline: bytes) -> bool:
    program = cmdline.split(b"\0", 1)[0].rpartition(b"/")[2]
    return program in (b"", b"java", b"jspawnhelper")


def memory_of(sample: Sample) -> int:
    """Return all memory of a sample."""
    return sum(value or 0 for value in (sample.driver_jvm_rss, sample.driver_python_rss, sample.workers_rss))


def thinned(samples: list[Sample]) -> list[Sample]:
    """Of each two samples the one with more memory."""
    return [max(samples[first : first + 2], key=memory_of) for first in range(0, len(samples), 2)]
