"""The driver of a run in Spark by the samples of its processes: memory of the JVM and its
heap, of the driver's Python, and of the workers.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from cmsspark.apps.monitor.processes.sampler import PYTHON_DAEMON, PYTHON_DRIVER, PYTHON_WORKER
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import MOST_SAMPLES, Sample


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
