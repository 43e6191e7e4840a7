"""Samples the processes of a run on this host: memory of the JVM, the driver's Python
and the workers.

:mod:`cmsspark.apps.monitor.processes.watch` stores each process in detail.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from cmsspark.apps.monitor.processes.sampler import DAEMONS, child_pids
from cmsspark.base import clock
from cmsspark.store.run_metrics import MOST_SAMPLES, Sample

#: Seconds between samples: what arrives in a run of an hour takes as long as in one of a
#: minute.
_INTERVAL_S: Final = 1.0
#: A sample costs at most this share of one core.
_SHARE: Final = 0.005
#: The JVM has many threads, each of which may have children: they are searched in each
#: n-th sample.
_NEW_CHILDREN: Final = 3


class TreeReader:
    """The processes below ``root``, which is spark-submit and becomes the driver's JVM."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._processes: dict[int, psutil.Process] = {}
        self._counters = JvmCounters(root)
        self._below_jvm: list[int] = []
        self._daemons: dict[int, bool] = {}
        self._cpu: dict[int, float] = {}
        self._looks = 0
        self._virtual: dict[int, int] = {}
        #: The largest memory of the JVM, of all Pythons, and of other children of the
        #: JVM, in the names of Spark. It would start ``pgrep`` for each process and
        #: each sample, which costs several percent of a core.
        self.peaks: dict[str, int] = {}

    def sample(self) -> Sample | None:
        """Return a sample of the processes; None where the root is gone."""
        root_rss = self._rss(self._root)
        if root_rss is None:
            return None
        sample = Sample(clock.now_ms())
        with suppress(OSError):
            sample.host_load = round(os.getloadavg()[0], 1)
        sample.driver_jvm_rss, sample.heap_bytes = root_rss, self._counters.heap()
        pythons, daemons = self._children_of_jvm()
        sample.jvm_moved_bytes = self._transferred(self._root, "read_chars", "write_chars")
        python_rss = {
            pid: rss for pid in [*pythons, *daemons] if (rss := self._rss(pid)) is not None
        }
        driver = max(
            (pid for pid in pythons if pid in python_rss),
            key=lambda pid: python_rss[pid],
            default=None,
        )
        if driver is not None:
            sample.driver_python_rss = python_rss[driver]
            sample.python_written_bytes = self._transferred(driver, "write_chars")
        workers = {
            pid: rss
            for daemon in daemons
            for pid in child_pids(daemon)
            if (rss := self._rss(pid)) is not None
        }
        sample.workers, sample.workers_rss = len(workers), sum(workers.values())
        if workers:
            sample.largest_worker = max(workers, key=lambda pid: workers[pid])
            sample.largest_worker_rss = workers[sample.largest_worker]
        self._note_peaks("JVM", {self._root: root_rss})
        self._note_peaks("Python", {**python_rss, **workers})
        sample.cpu_ms = round(1000 * sum(self._cpu.values()))
        return sample

    def _children_of_jvm(self) -> tuple[list[int], list[int]]:
        """Return the driver's Python, and daemons of Python workers."""
        if self._looks % _NEW_CHILDREN == 0:
            self._below_jvm = child_pids(self._root)
        self._looks += 1
        for pid in self._below_jvm:
            if pid not in self._daemons:
                with suppress(psutil.Error):
                    words = self._process(pid).cmdline()
                    # A child that is just being started is a copy of the JVM, until it
                    # executes its program.
                    if words and words[0].rpartition("/")[2] not in ("java", "jspawnhelper"):
                        self._daemons[pid] = any(
                            name in word for name in DAEMONS for word in words
                        )
        daemons = [pid for pid in self._below_jvm if self._daemons.get(pid)]
        return [pid for pid in self._below_jvm if self._daemons.get(pid) is False], daemons

    def _process(self, pid: int) -> psutil.Process:
        if pid not in self._processes:
            self._processes[pid] = psutil.Process(pid)
        return self._processes[pid]

    def _transferred(self, pid: int, *names: str) -> int | None:
        """Return the sum of counters of bytes that a process passed to the system; None
        where they cannot be read.
        """
        with suppress(psutil.Error):
            counters = self._process(pid).io_counters()
            return sum(int(getattr(counters, name)) for name in names)
        return None

    def _note_peaks(self, kind: str, rss: Mapping[int, int]) -> None:
        virtual = sum(self._virtual.get(pid, 0) for pid in rss)
        for name, value in (
            (f"ProcessTree{kind}VMemory", virtual),
            (f"ProcessTree{kind}RSSMemory", sum(rss.values())),
        ):
            self.peaks[name] = max(value, self.peaks.get(name, 0))

    def _rss(self, pid: int) -> int | None:
        """Resident bytes of a process, whose CPU time is noted; None for one that has ended."""
        with suppress(psutil.Error):
            process = self._process(pid)
            with process.oneshot():
                if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    return None
                # Children that were waited for are in it: workers that ended count.
                self._cpu[pid] = sum(process.cpu_times()[:4])
                memory = process.memory_info()
            self._virtual[pid] = memory.vms
            # One without pages is ending: nothing of it is a figure any more.
            return int(memory.rss) or None
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
        cost = 0.0
        while True:
            if self._over.wait(max(_INTERVAL_S, cost / _SHARE)):
                return
            # A measurement never ends a run: whatever goes wrong ends the measurement only.
            with suppress(Exception):
                self.look()
            cost = max(cost * 0.9, self._cost)

    def look(self) -> None:
        """Take a sample now."""
        before = time.thread_time()
        sample = self._reader.sample()
        # Without what is called after it, which limits itself: polls of REST are rarer,
        # and the first one has imports.
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
