"""The worst of what measured runs of a job used, and how much can be concluded from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from cmsspark.apps.monitor.findings_stages import GC_LEAST_MS
from cmsspark.store.run_metrics import ExecutorEntry, Finding, RunMetrics

_ENOUGH_RUNS: Final = 3
_SHORT_MS: Final = 10_000


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


def find_worst(runs: Sequence[RunMetrics], role: str) -> Worst:
    """Return the worst of the role's executors over runs."""
    worst = Worst()
    for run in runs:
        totals = run.totals
        worst.has_times = worst.has_times or totals.run_ms > 0
        # The first seconds of a JVM have much garbage of their own.
        if totals.run_ms >= GC_LEAST_MS:
            worst.gc_share = max(worst.gc_share, totals.gc_ms / totals.run_ms)
        worst.has_succeeded = worst.has_succeeded or run.state == "DONE"
        worst.heap_space = worst.heap_space or any(
            _is_full_heap(finding, run, role) for finding in run.findings
        )
        worst.spilled = max(worst.spilled, totals.disk_spilled_bytes)
        worst.killed = worst.killed or any(
            finding.code == "container_killed" for finding in run.findings
        )
        worst.heap = max(
            [worst.heap, *(sample.heap_bytes or 0 for sample in run.samples if role == "driver")]
        )
        for entry in run.executors:
            if (entry.executor == "driver") == (role == "driver"):
                _take(worst, entry)
    return worst


def _is_full_heap(finding: Finding, run: RunMetrics, role: str) -> bool:
    """Return whether a JVM of the role had no heap left. In local mode the driver runs
    the tasks, too.
    """
    is_of_role = run.master.startswith("local") or (finding.where == "tasks") == (
        role == "executor"
    )
    return finding.code == "heap_space" and is_of_role


def _take(worst: Worst, entry: ExecutorEntry) -> None:
    peaks = entry.peaks
    worst.areas |= peaks.keys()
    worst.heap = max(worst.heap, peaks.get("JVMHeapMemory", 0))
    worst.unified = max(worst.unified, peaks.get("OnHeapUnifiedMemory", 0))
    worst.storage = max(worst.storage, peaks.get("OnHeapStorageMemory", 0))
    worst.jvm_rss = max(worst.jvm_rss, peaks.get("ProcessTreeJVMRSSMemory", 0))
    worst.python = max(worst.python, peaks.get("ProcessTreePythonRSSMemory", 0))
    worst.off_heap_used = max(worst.off_heap_used, peaks.get("OffHeapUnifiedMemory", 0))
    worst.direct = max(worst.direct, peaks.get("DirectPoolMemory", 0))
    # Spark runs pgrep to see its children: for a moment such a child is a copy of the
    # JVM, as large in addresses.
    is_copy = peaks.get("ProcessTreeOtherVMemory", 0) > 0.9 * peaks.get("ProcessTreeJVMVMemory", 1)
    if not is_copy:
        worst.other_processes = max(
            worst.other_processes, peaks.get("ProcessTreeOtherRSSMemory", 0)
        )


def rate_confidence(runs: Sequence[RunMetrics]) -> str:
    """``high`` from three runs of at least 10 s of task time that succeeded, ``medium``
    from one, else ``low``.
    """
    long = [run for run in runs if run.totals.run_ms >= _SHORT_MS and run.state == "DONE"]
    if len(long) >= _ENOUGH_RUNS:
        return "high"
    return "medium" if long else "low"
