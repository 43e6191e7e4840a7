"""Spark's sizes: options as bytes, the container of an executor, how many tasks run at once,
and what the worst executor used.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from cmsspark.store.run_metrics import RunMetrics, StageEntry

MIB: Final = 1 << 20
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
#: Spark's defaults.
HEAP: Final = 1 << 30
LEAST_OVERHEAD: Final = 384 * MIB
RESERVED: Final = 300 * MIB
FRACTION: Final = 0.6
OVERHEAD_FACTOR: Final = 0.1
PARTITIONS_OPTION: Final = "spark.sql.shuffle.partitions"
PARTITIONS: Final = 200
#: Below this much time of tasks a share of garbage collection is noise.
GC_LEAST_MS: Final = 20_000
#: Options of Spark that are kept of a run.
KEPT: Final = re.compile(
    r"spark\.(driver|executor)\.(memory|cores|instances|memoryOverhead|memoryOverheadFactor|minMemoryOverhead|maxResultSize)"
    r"|spark\.memory\.(fraction|storageFraction|offHeap\.\w+)|spark\.(master|submit\.deployMode|default\.parallelism)"
    r"|spark\.sql\.adaptive\.(coalescePartitions\.parallelismFirst|advisoryPartitionSizeInBytes)"
    r"|spark\.sql\.adaptive\.skewJoin\.skewedPartitionThresholdInBytes"
    r"|spark\.(sql\.shuffle\.partitions|sql\.adaptive\.enabled|dynamicAllocation\.\w+|executor\.pyspark\.memory)"
    r"|spark\.(kubernetes\.memoryOverheadFactor|executor\.metrics\.pollingInterval|executor\.processTreeMetrics\.enabled|task\.cpus)"
)


def size(text: str | None, unit: str = "") -> int | None:
    """Bytes of an option such as ``4g``; a number alone is in ``unit``. None for none,
    or what is no size.
    """
    match = _SIZE.fullmatch(text or "")
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** _UNITS[(match[2] or unit).lower()])


def share(text: str | None, default: float) -> float:
    """Return a number of an option, or the default."""
    try:
        value = float(text) if text else default
    except ValueError:
        return default
    return value if math.isfinite(value) and value >= 0 else default


def count(text: str | None, default: int) -> int:
    """Return a whole number of an option, or the default for none and for 0."""
    return int(text) if text is not None and text.isdigit() and int(text) else default


def local_cores(master: str) -> int:
    """Return the cores of this host that a master ``local``, ``local[4]`` or ``local[*]`` uses."""
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    return len(os.sched_getaffinity(0)) if inside == "*" else count(inside, 1)


def heap(options: Mapping[str, str], role: str) -> int:
    """Return the heap of the ``driver`` or of an ``executor``."""
    text = options.get(f"spark.{role}.memory")
    # A number alone is MiB for YARN and Kubernetes, bytes for the JVM and other
    # masters: no heap is less than 1 MiB.
    is_mib = (size(text) or 0) < MIB
    return size(text, "m" if is_mib else "") or HEAP


def overhead(options: Mapping[str, str], role: str) -> int:
    """Return what the container of that role gets beside the heap."""
    fixed = size(options.get(f"spark.{role}.memoryOverhead"), "m")
    if fixed is not None:
        return fixed
    # On Kubernetes it is 0.4 for Python in cluster mode, and stands among the options then.
    usual = share(options.get("spark.kubernetes.memoryOverheadFactor"), OVERHEAD_FACTOR)
    factor = share(options.get(f"spark.{role}.memoryOverheadFactor"), usual)
    least = size(options.get(f"spark.{role}.minMemoryOverhead"), "m")
    return max(LEAST_OVERHEAD if least is None else least, int(heap(options, role) * factor))


def shuffle_partitions(options: Mapping[str, str]) -> int:
    """Return ``spark.sql.shuffle.partitions``."""
    return count(options.get(PARTITIONS_OPTION), PARTITIONS)


def is_adaptive(options: Mapping[str, str]) -> bool:
    """Return whether Spark changes plans by what it has seen: it joins small partitions."""
    return options.get("spark.sql.adaptive.enabled", "true").strip().lower() != "false"


def off_heap(options: Mapping[str, str]) -> int:
    """Spark's memory outside the heap, 0 unless it is on."""
    is_on = options.get("spark.memory.offHeap.enabled", "").strip().lower() == "true"
    return (size(options.get("spark.memory.offHeap.size")) or 0) if is_on else 0


def executor_container(options: Mapping[str, str]) -> int | None:
    """Return all memory of an executor's container; None where there are no executors
    beside the driver.
    """
    if options.get("spark.master", "").partition("[")[0] == "local":
        return None
    pyspark = size(options.get("spark.executor.pyspark.memory"), "m") or 0
    return heap(options, "executor") + overhead(options, "executor") + off_heap(options) + pyspark


def parallel_tasks(metrics: RunMetrics, stage: StageEntry | None = None) -> int:
    """Return how many tasks could run at once, in the run or while a stage ran: the
    cores of the executors that were there together, over the cores of a task.
    """
    first = (stage.submitted_ms if stage else None) or 0
    last = (stage.completed_ms if stage else None) or sys.maxsize
    is_local = metrics.is_local or metrics.engine == "processes"
    changes = []
    for entry in metrics.executors:
        begin, end = entry.added_ms or 0, entry.removed_ms or sys.maxsize
        if (entry.executor != "driver" or is_local) and begin <= last and end >= first:
            # One that is removed leaves before another comes at the same time.
            changes += [(max(begin, first), 1, entry.cores), (end, 0, -entry.cores)]
    cores = most = 0
    for _, _, change in sorted(changes):
        cores += change
        most = max(most, cores)
    return most // count(metrics.options.get("spark.task.cpus"), 1)


def as_option(size_bytes: int, step: int = 256 * MIB) -> str:
    """Bytes as Spark's options have them, rounded up to a step: ``1536m`` or ``4g``."""
    megabytes = -(-size_bytes // step) * step // MIB
    return f"{megabytes // 1024}g" if megabytes % 1024 == 0 else f"{megabytes}m"


class Worst(Struct):
    """The largest value of each figure over runs and executors; bytes."""

    heap: int = 0
    unified: int = 0
    storage: int = 0
    jvm_rss: int = 0
    python: int = 0
    other_processes: int = 0
    off_heap_used: int = 0
    direct: int = 0
    #: Of cached blocks, those that found no room in memory.
    cached_on_disk: int = 0
    gc_share: float = 0.0
    spilled: int = 0
    killed: bool = False
    #: A JVM of the role had no heap left.
    heap_space: bool = False
    #: A run succeeded: peaks of failed ones are lower bounds.
    has_succeeded: bool = False
    #: Task time is known, so a share of it is.
    has_times: bool = False
    #: Areas of memory that were measured, also where nothing was used.
    areas: set[str] = field(default_factory=set)


#: Figure of the worst executor → the area of memory whose peak it is.
_PEAKS: Final = {
    "heap": "JVMHeapMemory",
    "unified": "OnHeapUnifiedMemory",
    "storage": "OnHeapStorageMemory",
    "jvm_rss": "ProcessTreeJVMRSSMemory",
    "python": "ProcessTreePythonRSSMemory",
    "off_heap_used": "OffHeapUnifiedMemory",
    "direct": "DirectPoolMemory",
    "cached_on_disk": "DiskStorage",
}


def find_worst(runs: Sequence[RunMetrics], role: str) -> Worst:
    """Return the worst of the role's executors over runs."""
    worst = Worst()
    for run in runs:
        totals = run.totals
        worst.has_times = worst.has_times or totals.run_ms > 0
        # The first seconds of a JVM have much garbage of their own.
        if totals.worked_ms >= GC_LEAST_MS:
            worst.gc_share = max(worst.gc_share, totals.gc_ms / totals.run_ms)
        worst.has_succeeded = worst.has_succeeded or run.state == "DONE"
        # In local mode the driver runs the tasks, too.
        worst.heap_space = worst.heap_space or any(
            finding.code == "heap_space"
            and (run.is_local or (finding.where == "tasks") == (role == "executor"))
            for finding in run.findings
        )
        worst.spilled = max(worst.spilled, totals.disk_spilled_bytes)
        worst.killed = worst.killed or any(
            finding.code == "container_killed" for finding in run.findings
        )
        worst.heap = max(
            [worst.heap, *(sample.heap_bytes or 0 for sample in run.samples if role == "driver")]
        )
        for entry in run.executors:
            if (entry.executor == "driver") != (role == "driver"):
                continue
            peaks = entry.peaks
            worst.areas |= peaks.keys()
            for name, area in _PEAKS.items():
                setattr(worst, name, max(getattr(worst, name), peaks.get(area, 0)))
            # Spark runs pgrep to see its children: for a moment such a child is a copy of
            # the JVM, as large in addresses.
            jvm = peaks.get("ProcessTreeJVMVMemory", 1)
            if peaks.get("ProcessTreeOtherVMemory", 0) <= 0.9 * jvm:
                other_rss = peaks.get("ProcessTreeOtherRSSMemory", 0)
                worst.other_processes = max(worst.other_processes, other_rss)
    return worst
