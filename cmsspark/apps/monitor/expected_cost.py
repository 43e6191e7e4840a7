"""What a run of a job will take, by its runs that were measured before: executors, time, memory, core hours.

The time of a run is a part that any run takes and one that grows with the bytes that each core reads. Both come from
the runs of the same job on the same kind of cluster; until two of them read different amounts, from figures of a
machine of ours, scaled to the runs that there are.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cmsspark.apps.monitor import memory_sizes
from cmsspark.apps.monitor.advice_peaks import find_worst
from cmsspark.apps.monitor.measured_runs import measured_runs
from cmsspark.base.text.plurals import number_of
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import RunMetrics

#: Runs that an estimate is made of: the latest ones.
MOST_RUNS: Final = 20
#: Seconds of any run, and for each GB that a core reads, on a quiet machine: by processes, and in Spark.
_BY_PROCESSES: Final = (3.0, 1.6)
_IN_SPARK: Final = (45.0, 3.0)
#: The largest input beside the smallest one, from which on the share of each byte is told from runs alone.
_SPREAD: Final = 1.5
_GB: Final = 1e9


@dataclass(frozen=True)
class Size:
    """What a run reads, and on what: ``cores`` at most, in executors of ``executor_cores``."""

    input_bytes: int
    cores: int
    executor_cores: int

    @property
    def slots(self) -> int:
        """Tasks that run at once: those that the input makes, or all cores."""
        from cmsspark.engines.scan import choose_task_bytes

        tasks = math.ceil(self.input_bytes / choose_task_bytes(self.input_bytes, self.cores))
        return max(1, min(self.cores, tasks))

    @property
    def executors(self) -> int:
        """Executors that have these cores."""
        return math.ceil(self.slots / self.executor_cores)

    @property
    def share(self) -> float:
        """GB that a core reads."""
        return self.input_bytes / self.slots / _GB


@dataclass(frozen=True)
class Estimate:
    """The seconds that a run is expected to take; ``sizes`` and ``seconds`` of the runs that say so."""

    expected_s: float
    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()

    def basis(self) -> str:
        """Return where the estimate comes from, as text."""
        if not self.sizes:
            return "no run was measured yet: by figures of a quiet machine, which may be far off"
        read = " to ".join(dict.fromkeys(volume(size) for size in (min(self.sizes), max(self.sizes))))
        took = " to ".join(dict.fromkeys(f"{value:.0f}" for value in (min(self.seconds), max(self.seconds))))
        return f"by {number_of(len(self.sizes), 'measured run')} of {read}, which took {took} s"


def kind_of(engine: str, master: str) -> str:
    """Return what makes runs comparable: ``processes``, or the kind of Spark's master."""
    return engine if engine == "processes" else master.partition(":")[0].partition("[")[0]


def size_of(metrics: RunMetrics) -> Size:
    """Return the size of a measured run."""
    read = sum(entry.input_bytes for entry in metrics.reported)
    if metrics.engine == "processes":
        cores = max((entry.cores for entry in metrics.executors), default=1)
        return Size(read, cores, cores)
    return spark_size(read, metrics.options)


def spark_size(input_bytes: int, options: Mapping[str, str]) -> Size:
    """Return the size of a run in Spark with these options."""
    master = options.get("spark.master", "")
    if master.startswith("local"):
        inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
        cores = int(inside) if inside.isdigit() else len(os.sched_getaffinity(0))
        return Size(input_bytes, cores, cores)
    cores = _number(options.get("spark.executor.cores"), 1)
    is_dynamic = options.get("spark.dynamicAllocation.enabled") == "true"
    name = "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    return Size(input_bytes, cores * _number(options.get(name), 1 if is_dynamic else 2), cores)


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and int(text) else default


def comparable(state_dir: Path, job: str, kind: str, before_ms: int | None = None) -> list[RunMetrics]:
    """Return the latest runs of a job that ended well and read something, before a time where one is given."""
    runs = []
    for metrics in measured_runs(state_dir):
        is_same = metrics.job == job and metrics.state == "DONE" and kind_of(metrics.engine, metrics.master) == kind
        is_before = before_ms is None or metrics.began_ms < before_ms
        # By processes a result that was taken from another job's has no task.
        has_read = size_of(metrics).input_bytes and (kind != "processes" or metrics.totals.tasks)
        if is_same and is_before and has_read and metrics.ended_ms is not None:
            runs.append(metrics)
            if len(runs) == MOST_RUNS:
                break
    return runs


def estimate(runs: Sequence[RunMetrics], kind: str, size: Size) -> Estimate:
    """Return how long a run of ``size`` will take, by comparable ``runs``."""
    sizes = [size_of(metrics) for metrics in runs]
    seconds = [((metrics.ended_ms or 0) - metrics.began_ms) / 1000 for metrics in runs]
    usual = _BY_PROCESSES if kind == "processes" else _IN_SPARK
    fixed, slope = _law([entry.share for entry in sizes], seconds, usual)
    return Estimate(fixed + slope * size.share, tuple(entry.input_bytes for entry in sizes), tuple(seconds))


def _law(shares: Sequence[float], seconds: Sequence[float], usual: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds of any run, and those for each GB of a core."""
    if len(set(shares)) > 1 and max(shares) >= _SPREAD * min(shares):
        slope, fixed = statistics.linear_regression(shares, seconds)
        if slope > 0 and fixed > 0:
            return fixed, slope
    ratios = [duration / (usual[0] + usual[1] * share) for share, duration in zip(shares, seconds, strict=True)]
    scale = statistics.median(ratios) if ratios else 1.0
    return scale * usual[0], scale * usual[1]


def plan_lines(runs: Sequence[RunMetrics], kind: str, size: Size, options: Mapping[str, str]) -> Iterator[str]:
    """Yield what a run of ``size`` is expected to need. ``options``: those of Spark; empty for processes."""
    expected = estimate(runs, kind, size)
    container = memory_sizes.executor_container(options) if options else None
    if kind == "processes":
        yield f"processes  {size.slots} of this host"
    elif container is None:
        yield f"tasks      {size.slots} at once on this host"
    else:
        count = number_of(size.executors, "executor")
        yield f"executors  {count} of {number_of(size.executor_cores, 'core')}, {number_of(size.slots, 'task')} at once"
    yield f"memory     {_memory(runs, kind, size, container, options)}"
    yield f"time       {expected.expected_s:.0f} s, {expected.basis()}"
    hours = (size.slots if container is None else size.executors * size.executor_cores) * expected.expected_s / 3600
    cost = f"at most {hours:.2g} core hours"
    if container is not None:
        cost += f", {size.executors * container / _GB * expected.expected_s / 3600:.2g} GB hours of executors"
    yield f"cost       {cost}"


def _memory(
    runs: Sequence[RunMetrics], kind: str, size: Size, container: int | None, options: Mapping[str, str]
) -> str:
    is_here = container is None
    worst = find_worst(runs, "driver" if is_here else "executor") if runs else None
    peak = ""
    if worst is not None and worst.python:
        peak = f"; Python took up to {volume(worst.python)} in an earlier run"
    if container is not None:
        driver = memory_sizes.heap(options, "driver")
        return f"{size.executors} × {volume(container)} for executors, {volume(driver)} of heap for the driver{peak}"
    if kind == "processes":
        return peak.removeprefix("; ") or "not known before the first measured run"
    return f"{volume(memory_sizes.heap(options, 'driver'))} of heap, Python beside it{peak}"


def deviation(state_dir: Path, metrics: RunMetrics) -> str:
    """Return how far off the estimate was that ``--plan`` would have given before a run; empty where there is none."""
    size = size_of(metrics)
    if metrics.state != "DONE" or metrics.ended_ms is None or not size.input_bytes:
        return ""
    kind = kind_of(metrics.engine, metrics.master)
    expected = estimate(comparable(state_dir, metrics.job, kind, metrics.began_ms), kind, size)
    duration_s = (metrics.ended_ms - metrics.began_ms) / 1000
    change = duration_s / expected.expected_s - 1
    off = "as expected" if abs(change) < 0.005 else f"{abs(change):.0%} {'more' if change > 0 else 'less'}"
    return f"Expected: {expected.expected_s:.0f} s, {expected.basis()}; it took {duration_s:.0f} s, {off}"
