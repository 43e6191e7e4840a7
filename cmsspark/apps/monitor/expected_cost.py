"""What a run of a job will take, by its runs that were measured before: executors,
time, memory, core hours.

The time of a run is a part that any run takes and one that grows with the bytes that
each core reads. Both come from the runs of the same job on the same kind of cluster;
until two of them read different amounts, from figures of a machine of ours, scaled to
the runs that there are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cmsspark.apps.monitor import memory_sizes
from cmsspark.apps.monitor.advice_peaks import find_worst
from cmsspark.apps.monitor.measured_runs import measured_runs
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.store.run_metrics import RunMetrics

#: Runs that an estimate is made of: the latest ones.
MOST_RUNS: Final = 20
#: Seconds of any run, and for each GB that a core reads, on a quiet machine: by
#: processes, and in Spark.
_BY_PROCESSES: Final = (3.0, 1.6)
_IN_SPARK: Final = (45.0, 3.0)
#: Seconds of the tasks of any run, and for each GB that is read: 2 s of each process or
#: Python worker at its start.
_OF_TASKS: Final = (4.0, 1.6)
#: The largest input beside the smallest one, from which on the share of each byte is
#: told from runs alone.
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
    """What a run is expected to take; ``sizes`` and ``seconds`` of the runs that say so.

    ``tasks_s``: the time of its tasks together, which core hours are of.
    ``python_bytes``: the peak of Python's memory in an executor or on this host; None
    where no run has measured it.
    """

    expected_s: float
    tasks_s: float
    python_bytes: int | None = None
    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()

    def basis(self) -> str:
        """Return where the estimate comes from, as text."""
        if not self.sizes:
            return "an estimate: no earlier run to compare with"
        read = " to ".join(
            dict.fromkeys(volume(size) for size in (min(self.sizes), max(self.sizes)))
        )
        took = " to ".join(
            dict.fromkeys(_short(value) for value in (min(self.seconds), max(self.seconds)))
        )
        return f"by {pluralize(len(self.sizes), 'measured run')} of {read}, which took {took} s"


def classify_run(engine: str, master: str) -> str:
    """Return what makes runs comparable: ``processes``, or the kind of Spark's master."""
    return engine if engine == "processes" else master.partition(":")[0].partition("[")[0]


def size_run(metrics: RunMetrics) -> Size:
    """Return the size of a measured run."""
    read = sum(entry.input_bytes for entry in metrics.reported)
    if metrics.engine == "processes":
        cores = max((entry.cores for entry in metrics.executors), default=1)
        return Size(read, cores, cores)
    return size_spark_run(read, metrics.options)


def size_spark_run(input_bytes: int, options: Mapping[str, str]) -> Size:
    """Return the size of a run in Spark with these options."""
    master = options.get("spark.master", "")
    if master.startswith("local"):
        cores = memory_sizes.local_cores(master)
        return Size(input_bytes, cores, cores)
    cores = memory_sizes.count(options.get("spark.executor.cores"), 1)
    is_dynamic = options.get("spark.dynamicAllocation.enabled") == "true"
    name = "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    executors = memory_sizes.count(options.get(name), 1 if is_dynamic else 2)
    return Size(input_bytes, cores * executors, cores)


def comparable(
    state_dir: Path, job: str, kind: str, before_ms: int | None = None
) -> list[RunMetrics]:
    """Return the latest runs of a job that ended well and read something, before a time
    where one is given.
    """
    runs = []
    for metrics in measured_runs(state_dir):
        is_same = metrics.job == job and metrics.state == "DONE"
        is_same = is_same and classify_run(metrics.engine, metrics.master) == kind
        is_before = before_ms is None or metrics.began_ms < before_ms
        # By processes a result that was taken from another job's has no task.
        has_read = size_run(metrics).input_bytes and (kind != "processes" or metrics.totals.tasks)
        if is_same and is_before and has_read and metrics.ended_ms is not None:
            runs.append(metrics)
            if len(runs) == MOST_RUNS:
                break
    return runs


def estimate(runs: Sequence[RunMetrics], kind: str, size: Size) -> Estimate:
    """Return what a run of ``size`` will take, by comparable ``runs``."""
    sizes = [size_run(metrics) for metrics in runs]
    seconds = [_duration_s(metrics) for metrics in runs]
    usual = _BY_PROCESSES if kind == "processes" else _IN_SPARK
    fixed, slope = _law([entry.share for entry in sizes], seconds, usual)
    timed = [
        (size_run(metrics).input_bytes / _GB, metrics.totals.run_ms / 1000) for metrics in runs
    ]
    timed = [(read, tasks_s) for read, tasks_s in timed if tasks_s]
    fixed_tasks, slope_tasks = _law(
        [read for read, _ in timed], [tasks_s for _, tasks_s in timed], _OF_TASKS
    )
    peaks = [peak for metrics in runs if (peak := _python_peak(metrics, kind))]
    return Estimate(
        fixed + slope * size.share,
        fixed_tasks + slope_tasks * size.input_bytes / _GB,
        round(statistics.median(peaks)) if peaks else None,
        tuple(entry.input_bytes for entry in sizes),
        tuple(seconds),
    )


def _duration_s(metrics: RunMetrics) -> float:
    return ((metrics.ended_ms or 0) - metrics.began_ms) / 1000


def _python_peak(metrics: RunMetrics, kind: str) -> int:
    """Return the largest memory of Python in an executor, a worker process or a local
    session; 0: not measured.
    """
    return find_worst([metrics], "driver" if kind == "local" else "executor").python


def _law(
    shares: Sequence[float], seconds: Sequence[float], usual: tuple[float, float]
) -> tuple[float, float]:
    """Return the seconds of any run, and those for each GB of ``shares``."""
    if len(set(shares)) > 1 and max(shares) >= _SPREAD * min(shares):
        slope, fixed = statistics.linear_regression(shares, seconds)
        if slope > 0 and fixed > 0:
            return fixed, slope
    ratios = [
        duration / (usual[0] + usual[1] * share)
        for share, duration in zip(shares, seconds, strict=True)
    ]
    scale = statistics.median(ratios) if ratios else 1.0
    return scale * usual[0], scale * usual[1]


def plan_lines(
    runs: Sequence[RunMetrics], kind: str, size: Size, options: Mapping[str, str]
) -> Iterator[str]:
    """Yield what a run of ``size`` is expected to need. ``options``: those of Spark;
    empty for processes.
    """
    expected = estimate(runs, kind, size)
    container = memory_sizes.executor_container(options) if options else None
    if kind == "processes":
        yield f"processes  {size.slots} of this host"
    elif container is None:
        yield f"tasks      {size.slots} at once on this host"
    else:
        count = pluralize(size.executors, "executor")
        yield f"executors  {count} of {pluralize(size.executor_cores, 'core')}, {pluralize(size.slots, 'task')} at once"
    yield f"memory     {_memory(expected, kind, size, container, options)}"
    yield f"time       {_short(expected.expected_s)} s, {expected.basis()}"
    cores = size.slots if container is None else size.executors * size.executor_cores
    # Both are estimates of their own: tasks are never more than all.
    hours = max(cores * expected.expected_s, expected.tasks_s) / 3600
    cost = (
        f"{expected.tasks_s / 3600:.2g} core hours of tasks, at most {hours:.2g} with what waits"
    )
    if container is not None:
        cost += f"; {size.executors * container / _GB * expected.expected_s / 3600:.2g} GB hours of executors"
    yield f"cost       {cost}"


def _memory(
    expected: Estimate, kind: str, size: Size, container: int | None, options: Mapping[str, str]
) -> str:
    python = f"{volume(expected.python_bytes)} of Python" if expected.python_bytes else ""
    if kind == "processes":
        return f"{python} in each process" if python else "not known before the first measured run"
    used = f"; {python} expected" if python else ""
    if container is None:
        return f"{volume(memory_sizes.heap(options, 'driver'))} of heap, Python beside it{used}"
    driver = memory_sizes.heap(options, "driver")
    used = f"{used} in an executor" if used else ""
    return f"{size.executors} × {volume(container)} for executors, {volume(driver)} of heap for the driver{used}"


def deviation(state_dir: Path, metrics: RunMetrics) -> list[str]:
    """Return how far off the estimates were that ``--plan`` would have given before a
    run; none where there are none.

    Lines for time, core hours of tasks and, where it was measured, memory of Python.
    """
    size = size_run(metrics)
    if metrics.state != "DONE" or metrics.ended_ms is None or not size.input_bytes:
        return []
    kind = classify_run(metrics.engine, metrics.master)
    expected = estimate(comparable(state_dir, metrics.job, kind, metrics.began_ms), kind, size)
    took = _short(expected.expected_s)
    lines = [
        f"Expected: {took} s, {expected.basis()}"
        if expected.sizes
        else f"Expected about {took} s ({expected.basis()})"
    ]
    lines.append(f"  time    {_compared(_duration_s(metrics), expected.expected_s, _short, ' s')}")
    if tasks_s := metrics.totals.run_ms / 1000:
        lines.append(f"  tasks   {_compared(tasks_s, expected.tasks_s, _short, ' core seconds')}")
    if expected.python_bytes and (peak := _python_peak(metrics, kind)):
        lines.append(f"  Python  {_compared(peak, expected.python_bytes, volume)}")
    return lines


def _short(seconds: float) -> str:
    """Return seconds as text: below 10 with two digits, so that what is compared differs."""
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _compared(value: float, expected: float, shown: Callable[[Any], str], unit: str = "") -> str:
    change = value / expected - 1
    off = (
        "as expected"
        if abs(change) < 0.005
        else f"{abs(change):.0%} {'more' if change > 0 else 'less'}"
    )
    return f"{shown(value)}{unit} instead of {shown(expected)}{unit}: {off}"
