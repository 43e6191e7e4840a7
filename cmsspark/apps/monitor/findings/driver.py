"""Findings on the driver and the Python workers: from samples of processes and from the
driver's log.

Growth of the driver is named with what is known of its cause. A result counts by its own
time: from the submission of its stage until the driver's Python stops to grow after it.
Growth while no task runs is named only with a cause: data that Python pickled to a file, or
heap and Python that rose together while the JVM moved bytes, as calls through Py4J do. What
a script keeps in its own Python is its own affair, and no finding.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.findings.failures import OUT_OF_MEMORY
from cmsspark.base import clock
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics, Sample, StageEntry

MB: Final = 1_000_000
#: A rise in this time …
JUMP_MS: Final = 5_000
#: … or, on a busy host, in this CPU time of the run and this time …
JUMP_CPU_MS: Final = 2_000
SLOW_JUMP_MS: Final = 60_000
#: … or between two samples with no other between them, at most so far apart: a long run
#: is sampled less often …
GAP_MS: Final = 15_000
#: … by this much: planning a query makes less garbage.
JUMP_BYTES: Final = 256 * MB
#: A result is compressed: it explains a rise of Python's memory of up to a hundred times its size.
RESULT_SHARE: Final = 0.01
RESULT_BYTES: Final = MB
#: What Python wrote to files, and what the JVM moved, must be this share of a rise to explain it.
PICKLED_SHARE: Final = 0.25
MOVED_SHARE: Final = 0.1
#: With a rise of the heap Python gets at least this share of it: the text that Py4J passed on.
TOGETHER_SHARE: Final = 0.05
#: A result has arrived when Python has not grown for so long.
REST_MS: Final = 4_000
#: Data are pickled before the next task starts, and in this time.
PICKLING_MS: Final = 60_000
#: A sample that is not larger by this much than the one before does not grow.
_GROWS: Final = 4 * MB
PY4J_CURE: Final = (
    "do not pull objects through Py4J: give them to Spark as a DataFrame and read it with toArrow() or toPandas() "
    "(spark.sql.execution.arrow.pyspark.enabled=true), or write a file and read that"
)
_COLLECTS: Final = ("collect at", "toPandas at", "toArrow at", "toLocalIterator at", "take at")

Value = Callable[[Sample], int | None]


class Rise(NamedTuple):
    """A rise of a value: when it began and ended, and its lowest and highest value."""

    begin_ms: int
    end_ms: int
    low: int
    high: int

    @property
    def bytes(self) -> int:
        """Return by how much the value rose."""
        return self.high - self.low


def growth_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield what made the driver grow. Without an event log it is not known when tasks
    ran, and nothing is said.
    """
    if "events" not in metrics.sources and metrics.engine == "spark":
        return
    results = list(_results(metrics))
    yield from (finding for _, finding in results)
    if not any(sample.driver_python_rss is not None for sample in metrics.samples):
        yield from _collected(metrics)
    python = _quiet_rise(metrics, lambda sample: sample.driver_python_rss)
    if python is not None and not any(_overlap(rise, python) for rise, _ in results):
        yield from _pickled(metrics, python)
    heap = _quiet_rise(metrics, lambda sample: sample.heap_bytes)
    if heap is not None and not any(_overlap(rise, heap) for rise, _ in results):
        yield from _py4j(metrics, heap)


def _results(metrics: RunMetrics) -> Iterator[tuple[Rise, Finding]]:
    """Yield rises of the driver's Python while a result arrived; the largest of each stage's name."""
    named: dict[str, tuple[Rise, StageEntry]] = {}
    for stage in metrics.stages:
        rise = _arrival(metrics, stage) if stage.totals.result_bytes >= RESULT_BYTES else None
        if (
            rise is None
            or rise.bytes < JUMP_BYTES
            or stage.totals.result_bytes < RESULT_SHARE * rise.bytes
        ):
            continue
        if stage.name not in named or rise.bytes > named[stage.name][0].bytes:
            named[stage.name] = rise, stage
    for rise, stage in named.values():
        title = (
            f"the driver's Python rose by {volume(rise.bytes)} to {volume(rise.high)} while "
            f"{volume(stage.totals.result_bytes)} of results arrived"
        )
        yield (
            rise,
            Finding(
                "collected_to_driver", title, f"stage {stage.stage}, {stage.name}", _COLLECT_CURE
            ),
        )


_COLLECT_CURE: Final = (
    "limit() or aggregate before collect() and toPandas(); write large results with df.write"
)


def _arrival(metrics: RunMetrics, stage: StageEntry) -> Rise | None:
    """Return the rise of the driver's Python from a stage's begin until it stops to
    grow after the stage's end.
    """
    begin, end = stage.submitted_ms, stage.completed_ms
    if begin is None or end is None:
        return None
    # The next job starts when Python has got the result of this one.
    limit = min(
        (s.submitted_ms for s in metrics.stages if s.submitted_ms and s.submitted_ms > end),
        default=None,
    )
    low: tuple[int, int] | None = None
    high = (0, 0)
    grown_ms = end
    for sample in metrics.samples:
        rss = sample.driver_python_rss
        if rss is None or (limit is not None and sample.at_ms > limit):
            continue
        if sample.at_ms <= begin or low is None:
            low = (sample.at_ms, rss)
            continue
        if sample.at_ms - max(end, grown_ms) > REST_MS:
            break
        if rss > high[1]:
            grown_ms = sample.at_ms if rss > high[1] + _GROWS else grown_ms
            high = (sample.at_ms, rss)
    return Rise(low[0], high[0], low[1], high[1]) if low is not None and high[1] > low[1] else None


def _collected(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield large results where no process of the driver was sampled, as in the log of
    another program.
    """
    for stage in metrics.stages:
        if stage.totals.result_bytes >= JUMP_BYTES and stage.name.startswith(_COLLECTS):
            title = f"{volume(stage.totals.result_bytes)} of results went to the driver"
            yield Finding(
                "collected_to_driver", title, f"stage {stage.stage}, {stage.name}", _COLLECT_CURE
            )


def _quiet_rise(metrics: RunMetrics, value: Value) -> Rise | None:
    """Return the largest rise while no task ran; None where it is small, or tasks ran meanwhile."""
    points = [
        (sample, amount) for sample in metrics.samples if (amount := value(sample)) is not None
    ]
    best: Rise | None = None
    first = 0
    for number, (sample, amount) in enumerate(points):
        while not _is_near(points[first][0], sample):
            first += 1
        start = first
        if first == number and number and sample.at_ms - points[number - 1][0].at_ms <= GAP_MS:
            start = number - 1
        # What rose while tasks ran before is not what rose after them.
        idle = max((end for begin, end in metrics.task_spans if begin < sample.at_ms), default=0)
        earlier = [
            (before.at_ms, low)
            for before, low in points[start:number]
            if idle <= before.at_ms < sample.at_ms
        ]
        if not earlier:
            continue
        low_at, low = min(earlier, key=lambda point: point[1])
        rise = Rise(low_at, sample.at_ms, low, amount)
        if rise.bytes >= JUMP_BYTES and (best is None or rise.bytes > best.bytes):
            best = rise
    return best


def _is_near(earlier: Sample, later: Sample) -> bool:
    """Return whether a rise from one sample to the other is a jump: in little time, or
    in little CPU of the run.
    """
    passed = later.at_ms - earlier.at_ms
    if passed <= JUMP_MS or earlier.cpu_ms is None or later.cpu_ms is None:
        return passed <= JUMP_MS
    return passed <= SLOW_JUMP_MS and later.cpu_ms - earlier.cpu_ms <= JUMP_CPU_MS


def _pickled(metrics: RunMetrics, rise: Rise) -> Iterator[Finding]:
    """Yield a rise of Python while it wrote a file: broadcast(), parallelize() and
    createDataFrame() pickle to one.
    """
    # What is broadcast is made first, and pickled then.
    tasks = min(
        (begin for begin, _ in metrics.task_spans if begin >= rise.end_ms),
        default=rise.end_ms + PICKLING_MS,
    )
    until = rise._replace(end_ms=min(tasks, rise.end_ms + PICKLING_MS))
    written = _change(metrics, until, lambda sample: sample.python_written_bytes)
    if written is None or written < PICKLED_SHARE * rise.bytes:
        return
    title = (
        f"the driver's Python rose by {volume(rise.bytes)} to {volume(rise.high)} in {_seconds(rise)} s while "
        f"{volume(written)} were pickled to a file, as for a broadcast"
    )
    cure = (
        "broadcast what tasks need only; put large tables into a file that Spark reads, instead of broadcast(), "
        "parallelize() or createDataFrame()"
    )
    yield Finding("driver_python_jump", title, _describe_begin(metrics, rise), cure)


def _py4j(metrics: RunMetrics, rise: Rise) -> Iterator[Finding]:
    """Yield a rise of the heap with which Python rose, too, while the JVM moved bytes."""
    near = Rise(rise.begin_ms, rise.end_ms + JUMP_MS, 0, 0)
    python = _change(metrics, near, lambda sample: sample.driver_python_rss)
    moved = _change(metrics, near, lambda sample: sample.jvm_moved_bytes)
    if python is None or python < TOGETHER_SHARE * rise.bytes:
        return
    if moved is not None and moved < MOVED_SHARE * python:
        return
    title = (
        f"the driver's heap rose by {volume(rise.bytes)} to {volume(rise.high)} in {_seconds(rise)} s and its Python "
        f"by {volume(python)} while no task ran: an object comes through Py4J"
    )
    yield Finding("driver_heap_jump", title, _describe_begin(metrics, rise), PY4J_CURE)


def _change(metrics: RunMetrics, rise: Rise, value: Value) -> int | None:
    """Return by how much a value rose meanwhile; None where it was not measured."""
    values = [
        amount
        for sample in metrics.samples
        if rise.begin_ms <= sample.at_ms <= rise.end_ms and (amount := value(sample)) is not None
    ]
    return max(values) - values[0] if len(values) > 1 else None


def _overlap(first: Rise, second: Rise) -> bool:
    return first.begin_ms <= second.end_ms and second.begin_ms <= first.end_ms


def _seconds(rise: Rise) -> str:
    return f"{(rise.end_ms - rise.begin_ms) / 1000:.0f}"


def _describe_begin(metrics: RunMetrics, rise: Rise) -> str:
    return f"{clock.to_second(rise.begin_ms)} UTC, {(rise.begin_ms - metrics.began_ms) / 1000:.0f} s after the begin"


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
