"""Findings on the driver and the Python workers: from samples of processes and from the driver's log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.base import clock
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics, Sample

MB: Final = 1_000_000
CODES_OF_DRIVER: Final = {
    "heap_space": "a JVM had no heap left",
    "py4j_object": "Py4J turned a large object into text in the driver's JVM",
    "driver_heap_jump": "the heap of the driver rose while no task ran",
    "driver_python_jump": "the memory of the driver's Python rose while no task ran",
    "collected_to_driver": "a large result went to the driver's Python",
    "python_worker_leak": "the memory of a Python worker rose from task to task",
    "driver_unreachable": "executors could not reach the driver",
}
#: A rise in this time …
JUMP_MS: Final = 5_000
#: … or, on a busy host, in this CPU time of the run and this time …
JUMP_CPU_MS: Final = 2_000
SLOW_JUMP_MS: Final = 60_000
#: … or between two samples with no other between them, at most so far apart: a long run is sampled less often …
GAP_MS: Final = 15_000
#: … by this much: planning a query makes less garbage.
JUMP_BYTES: Final = 256 * MB
#: A result explains a rise of the driver's memory if it has at least this share of it.
_RESULT_SHARE: Final = 0.1
_RESULT_MS: Final = 20_000
LEAK_BYTES: Final = 100 * MB
LEAK_FACTOR: Final = 1.5
LEAK_MS: Final = 8_000
_LEAST_SAMPLES: Final = 6
#: A heap of which this share is in use is full: a part of it is kept free for copying.
FULL_HEAP: Final = 0.85
_ARROW: Final = (
    "do not pull objects through Py4J: give them to Spark as a DataFrame and read it with toArrow() or toPandas() "
    "(spark.sql.execution.arrow.pyspark.enabled=true), or write a file and read that"
)
_HEAP: Final = re.compile(r"Java heap space|GC overhead limit exceeded|OutOfMemoryError")
_PY4J: Final = re.compile(r"getOutputCommand|py4j\.Protocol")
#: In client mode YARN's application master connects to the driver, and logs only its address.
_UNREACHED: Final = re.compile(
    r"Failed to connect to (?:driver|master)[^\n]*|(?<=YARN: )[^\n]*Failed to connect to [^\n]*"
)


def driver_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """The findings of the driver and of Python workers."""
    yield from _of_logs(metrics)
    yield from _jump(metrics, "driver_heap_jump", "the driver's heap", lambda sample: sample.heap_bytes)
    yield from _jump(metrics, "driver_python_jump", "the driver's Python", lambda sample: sample.driver_python_rss)
    yield from _leak(metrics)


def _of_logs(metrics: RunMetrics) -> Iterator[Finding]:
    for line in metrics.log_lines:
        if (match := _UNREACHED.search(line)) is not None:
            cure = "spark.driver.host must be a name or address that nodes reach, spark.driver.port open to them"
            yield Finding("driver_unreachable", match[0][:160], "the driver's log", cure, "error")
            break
    if any(_PY4J.search(line) for line in metrics.log_lines):
        title = "py4j.Protocol.getOutputCommand is in the driver's log: an object became text, in many copies"
        yield Finding("py4j_object", title, "the driver's log", _ARROW, "error")
    yield from _full_heap(metrics)
    for where, texts in (("the driver's log", metrics.log_lines), ("tasks", [*metrics.failures])):
        full = next((text for text in texts if _HEAP.search(text)), None)
        if full is not None:
            role = "executor" if where == "tasks" and not metrics.master.startswith("local") else "driver"
            cure = f"a larger heap (spark.{role}.memory), or less in it at once; cmsspark lab advise has figures"
            yield Finding("heap_space", f"no heap was left: {full[:160]}", where, cure, "error")


def _full_heap(metrics: RunMetrics) -> Iterator[Finding]:
    """A run that failed with a full heap: the script writes the error to its own output, which is not read here."""
    limit = sizes.heap(metrics.options, "driver")
    largest = max((sample.heap_bytes or 0 for sample in metrics.samples), default=0)
    if metrics.exit_code in (0, None) or largest < FULL_HEAP * limit or metrics.deploy_mode == "cluster":
        return
    title = f"{volume(largest)} of {volume(limit)} were in use before it failed"
    cure = "a larger heap (spark.driver.memory), or less in it at once; cmsspark lab advise has figures"
    yield Finding("heap_space", title, "the driver's heap", cure, "error")


def _jump(metrics: RunMetrics, code: str, what: str, value: Callable[[Sample], int | None]) -> Iterator[Finding]:
    """The largest rise while no task ran; none where tasks ran meanwhile, or it is small."""
    if "events" not in metrics.sources and metrics.engine == "spark":
        return  # it is not known when tasks ran
    points = [(sample, amount) for sample in metrics.samples if (amount := value(sample)) is not None]
    best: tuple[int, int, int, int, int] | None = None
    first = 0
    for number, (sample, amount) in enumerate(points):
        while not _is_near(points[first][0], sample):
            first += 1
        start = first
        if first == number and number and sample.at_ms - points[number - 1][0].at_ms <= GAP_MS:
            start = number - 1
        at = sample.at_ms
        # What rose while tasks ran before is not what rose after them.
        idle = max((end for begin, end in metrics.task_spans if begin < at), default=0)
        earlier = [(one.at_ms, low) for one, low in points[start:number] if idle <= one.at_ms < at]
        if not earlier:
            continue
        low_at, low = min(earlier, key=lambda point: point[1])
        rise = amount - low
        if rise >= JUMP_BYTES and (best is None or rise > best[0]):
            best = (rise, low_at, at, low, amount)
    if best is None:
        return
    rise, low_at, at, low, high = best
    when = f"{clock.to_second(low_at)} UTC, {(low_at - metrics.began_ms) / 1000:.0f} s after the begin"
    title = f"{what} rose by {volume(rise)} to {volume(high)} in {(at - low_at) / 1000:.0f} s while no task ran"
    result = sum(
        stage.totals.result_bytes
        for stage in metrics.stages
        if stage.completed_ms is not None and at - _RESULT_MS <= stage.completed_ms <= at
    )
    if result >= _RESULT_SHARE * rise:
        cure = "limit() or aggregate before collect() and toPandas(); write large results with df.write"
        yield Finding("collected_to_driver", f"{title}: a result of {volume(result)} went there", when, cure)
    else:
        yield Finding(code, f"{title}: most likely Py4J pulls an object", when, _ARROW)


def _is_near(earlier: Sample, later: Sample) -> bool:
    """Whether a rise from one sample to the other is a jump: in little time, or in little CPU time of the run."""
    passed = later.at_ms - earlier.at_ms
    if passed <= JUMP_MS or earlier.cpu_ms is None or later.cpu_ms is None:
        return passed <= JUMP_MS
    return passed <= SLOW_JUMP_MS and later.cpu_ms - earlier.cpu_ms <= JUMP_CPU_MS


def _leak(metrics: RunMetrics) -> Iterator[Finding]:
    """A worker that grows over the ends of tasks: what a task needs itself, it gives back or keeps once."""
    by_pid: dict[int, list[tuple[int, int]]] = {}
    for sample in metrics.samples:
        # A process that ends has given its pages back before it is gone.
        if sample.largest_worker is not None and sample.largest_worker_rss:
            by_pid.setdefault(sample.largest_worker, []).append((sample.at_ms, sample.largest_worker_rss))
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
        title = f"a Python worker grew from {volume(first)} to {volume(last)} in {(last_at - first_at) / 1000:.0f} s"
        cure = (
            "look for what is kept in globals or caches of functions; spark.python.worker.reuse=false ends each worker"
        )
        yield Finding("python_worker_leak", f"{title}, over many tasks", f"worker {pid}", cure)
        return


def _without_rests(points: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without the samples of a worker that had nothing to do and stayed as it was: they say nothing of its tasks."""
    kept = points[:1]
    for at, rss in points[1:]:
        before = bisect_right(spans, at, key=lambda span: span[0])
        is_busy = before > 0 and at <= spans[before - 1][1]
        if is_busy or not 0.98 * kept[-1][1] <= rss <= kept[-1][1]:
            kept.append((at, rss))
    return kept


def _keeps_rising(points: list[tuple[int, int]]) -> bool:
    """Whether memory rises in each third of the time, and never falls by more than a tenth."""
    largest = 0
    for _, rss in points:
        if rss < 0.9 * largest:
            return False
        largest = max(largest, rss)
    thirds = [points[len(points) * number // 3 : len(points) * (number + 1) // 3] for number in range(3)]
    return all(third[-1][1] > third[0][1] for third in thirds if len(third) > 1)


def _task_time(metrics: RunMetrics, first: int, last: int) -> int | None:
    """The longest median of tasks' times of the stages at that time."""
    times = [
        stage.task_ms.median
        for stage in metrics.stages
        if (stage.submitted_ms or 0) < last and (stage.completed_ms or last) > first and stage.totals.tasks
    ]
    return max(times, default=None)
