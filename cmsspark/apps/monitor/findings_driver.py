"""Findings on the driver and the Python workers: from samples of processes and from the
driver's log.

Growth of the driver is named with what is known of its cause: a result that arrived,
data that were pickled to a file, a call through Py4J. What a script keeps in its own
Python is its own affair, and no finding.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.driver_growth import PY4J_CURE, growth_findings
from cmsspark.apps.monitor.findings_failures import OUT_OF_MEMORY
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics

MB: Final = 1_000_000
LEAK_BYTES: Final = 100 * MB
LEAK_FACTOR: Final = 1.5
LEAK_MS: Final = 8_000
#: Each third of the time has at least this share of the rise, and no single step more
#: than half of it.
LEAK_THIRD: Final = 0.15
LEAK_STEP: Final = 0.5
_LEAST_SAMPLES: Final = 6
#: A heap of which this share is in use is full: a part of it is kept free for copying.
FULL_HEAP: Final = 0.85
_PY4J: Final = re.compile(r"getOutputCommand|py4j\.Protocol")
#: In client mode YARN's application master connects to the driver, and logs only its address.
_UNREACHED: Final = re.compile(
    r"Failed to connect to (?:driver|master)[^\n]*|(?<=YARN: )[^\n]*Failed to connect to [^\n]*"
)


def driver_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield the findings of the driver and of Python workers."""
    yield from _log_findings(metrics)
    yield from growth_findings(metrics)
    yield from _leak(metrics)


def _log_findings(metrics: RunMetrics) -> Iterator[Finding]:
    for line in metrics.log_lines:
        if (match := _UNREACHED.search(line)) is not None:
            cure = "spark.driver.host must be a name or address that nodes reach, spark.driver.port open to them"
            yield Finding("driver_unreachable", match[0][:160], "the driver's log", cure, "error")
            break
    if any(_PY4J.search(line) for line in metrics.log_lines):
        title = "py4j.Protocol.getOutputCommand is in the driver's log: an object became text, in many copies"
        yield Finding("py4j_object", title, "the driver's log", PY4J_CURE, "error")
    yield from _full_heap(metrics)
    texts_by_place = (
        ("the driver's log", metrics.log_lines),
        ("tasks", [*metrics.failures, *metrics.stage_failures]),
    )
    for where, texts in texts_by_place:
        full = next((text for text in texts if OUT_OF_MEMORY.search(text)), None)
        if full is not None:
            role = (
                "executor"
                if where == "tasks" and not metrics.master.startswith("local")
                else "driver"
            )
            cure = f"a larger heap (spark.{role}.memory), or less in it at once; cmsspark lab advise has figures"
            yield Finding("heap_space", f"no heap was left: {full[:160]}", where, cure, "error")


def _full_heap(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield a run that failed with a full heap: its error may be in the script's own
    output, which is not read.
    """
    limit = sizes.heap(metrics.options, "driver")
    largest = max((sample.heap_bytes or 0 for sample in metrics.samples), default=0)
    if (
        metrics.exit_code in (0, None)
        or largest < FULL_HEAP * limit
        or metrics.deploy_mode == "cluster"
    ):
        return
    title = f"{volume(largest)} of {volume(limit)} were in use before it failed"
    cure = "a larger heap (spark.driver.memory), or less in it at once; cmsspark lab advise has figures"
    yield Finding("heap_space", title, "the driver's heap", cure, "error")


def _leak(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield a worker that grows over the ends of tasks: what a task needs itself, it
    gives back or keeps once.
    """
    by_pid: dict[int, list[tuple[int, int]]] = {}
    for sample in metrics.samples:
        # A process that ends has given its pages back before it is gone.
        if sample.largest_worker is not None and sample.largest_worker_rss:
            by_pid.setdefault(sample.largest_worker, []).append(
                (sample.at_ms, sample.largest_worker_rss)
            )
    for pid, sampled in by_pid.items():
        points = _without_rests(sampled, metrics.task_spans)
        (first_at, first), (last_at, last) = points[0], points[-1]
        if len(points) < _LEAST_SAMPLES or last_at - first_at < LEAK_MS:
            continue
        if last - first < LEAK_BYTES or last < LEAK_FACTOR * first or not _keeps_rising(points):
            continue
        tasks = _task_time(metrics, first_at, last_at)
        if tasks is None or last_at - first_at < 3 * tasks:
            continue  # one task may well need it
        rise = f"from {volume(first)} to {volume(last)}"
        title = f"a Python worker grew {rise} in {(last_at - first_at) / 1000:.0f} s"
        cure = "look for what is kept in globals or caches of functions; spark.python.worker.reuse=false ends each worker"
        yield Finding("python_worker_leak", f"{title}, over many tasks", f"worker {pid}", cure)
        return


def _without_rests(
    points: list[tuple[int, int]], spans: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the samples without those of a worker that had nothing to do and stayed as it was."""
    busy = points[:1]
    for at, rss in points[1:]:
        before = bisect_right(spans, at, key=lambda span: span[0])
        is_busy = before > 0 and at <= spans[before - 1][1]
        if is_busy or not 0.98 * busy[-1][1] <= rss <= busy[-1][1]:
            busy.append((at, rss))
    return busy


def _keeps_rising(points: list[tuple[int, int]]) -> bool:
    """Return whether memory rises over the whole time: what is loaded once rises at
    once, or at the begin.
    """
    largest, least = 0, points[0][1]
    step = 0
    for _, rss in points:
        if rss < 0.9 * largest:
            return False
        step = max(step, rss - largest) if largest else 0
        largest = max(largest, rss)
    rise = points[-1][1] - least
    bounds = [points[(len(points) - 1) * number // 3][1] for number in range(4)]
    thirds = [after - before for before, after in itertools.pairwise(bounds)]
    return step <= LEAK_STEP * rise and all(third >= LEAK_THIRD * rise for third in thirds)


def _task_time(metrics: RunMetrics, first: int, last: int) -> int | None:
    """Return the longest median of tasks' times of the stages at that time."""
    times = [
        stage.task_ms.median
        for stage in metrics.stages
        if (stage.submitted_ms or 0) < last
        and (stage.completed_ms or last) > first
        and stage.totals.tasks
    ]
    return max(times, default=None)
