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
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.findings import named
from cmsspark.apps.monitor.findings.failures import OUT_OF_MEMORY
from cmsspark.apps.monitor.findings.stages import slowness
from cmsspark.base import dates
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics, Sample, StageEntry

MB: Final = 1_000_000
#: A rise in this time …
JUMP_MS: Final = 5_000
#: … or, on a busy host, in this CPU time of the run and this time …
JUMP_CPU_MS: Final = 2_000
SLOW_JUMP_MS: Final = 60_000
#: … or, where samples are further apart, the time between two of them and so much more: a
#: long run is sampled less often. Samples that are further apart than this show no rise …
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
#: A result has arrived when Python has not grown for so long; longer on a host that others load.
REST_MS: Final = 4_000
#: Data are pickled before the next task starts, and in this time.
PICKLING_MS: Final = 60_000
#: Samples are dense where they are at most so far apart.
DENSE_MS: Final = 1_500
#: A result that arrived while no sample was taken is named from this size on: in Python it
#: takes some eight times as much.
RESULT_UNSEEN: Final = 32 * MB
#: Between two samples that are far apart this share of the time was without tasks.
QUIET_SHARE: Final = 0.3
#: The memory of a driver's Python that was first sampled after a result had arrived is
#: taken to have been this before; the result must be this share of the rise then.
PYTHON_BYTES: Final = 150 * MB
UNSEEN_SHARE: Final = 0.05
#: A sample that is not larger by this much than the one before does not grow.
_GROWS: Final = 4 * MB
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
    causes = (
        (_pickled, lambda sample: sample.driver_python_rss),
        (_py4j, lambda sample: sample.heap_bytes),
    )
    for explain, value in causes:
        for rise in _quiet_rises(metrics, value):
            if any(
                (rise.begin_ms <= arrival.end_ms and arrival.begin_ms <= rise.end_ms)
                for arrival, _ in results
            ):
                continue
            if (finding := explain(metrics, rise)) is not None:
                yield finding
                break


def _results(metrics: RunMetrics) -> Iterator[tuple[Rise, Finding]]:
    """Yield rises of the driver's Python while a result arrived; the largest of each stage's name."""
    largest: dict[str, tuple[Rise, StageEntry]] = {}
    points = [
        (sample.at_ms, sample.driver_python_rss)
        for sample in metrics.samples
        if sample.driver_python_rss is not None
    ]
    begins = sorted(stage.submitted_ms for stage in metrics.stages if stage.submitted_ms)
    for stage in metrics.stages if metrics.samples else ():
        rise = None
        if stage.totals.result_bytes >= RESULT_BYTES:
            rise = _arrival(metrics, stage, points, begins)
        if rise is not None and (
            stage.name not in largest or rise.bytes > largest[stage.name][0].bytes
        ):
            largest[stage.name] = rise, stage
    for rise, stage in largest.values():
        title = f"{volume(stage.totals.result_bytes)} of results arrived"
        if rise.high:
            change = f"{volume(rise.bytes)} to {volume(rise.high)}"
            title = f"the driver's Python rose by {change} while {title}"
        else:
            title += " in the driver's Python, of which no sample was taken meanwhile"
        where = f"stage {stage.stage}, {stage.name}"
        yield rise, named("collected_to_driver", title, where)


def _arrival(
    metrics: RunMetrics,
    stage: StageEntry,
    points: Sequence[tuple[int, int]],
    begins: Sequence[int],
) -> Rise | None:
    """Return the rise of the driver's Python from a stage's begin until it stops to
    grow after the stage's end, if that is a finding. ``begins``: of all stages.

    Its ``high`` is 0 if the result is known by its size only: no sample was taken
    between its arrival and the next job.
    """
    begin, end, size = stage.submitted_ms, stage.completed_ms, stage.totals.result_bytes
    if begin is None or end is None or not points:
        return None
    # The next job starts when Python has got the result of this one.
    position = bisect_right(begins, end)
    limit = begins[position] if position < len(begins) else None
    low: tuple[int, int] | None = None
    high = (0, 0)
    grown_ms, is_seen, rest_ms = end, False, REST_MS * slowness(metrics)
    before_ms = max((s.at_ms for s in metrics.samples if s.at_ms < points[0][0]), default=begin)
    for at_ms, rss in points:
        gap = at_ms - before_ms
        gap = gap if gap > DENSE_MS else 0
        before_ms = at_ms
        if at_ms <= begin:
            low = (at_ms, rss)
            continue
        if limit is not None and at_ms > limit:
            # The first sample after the next job's begin is the only one of a short time.
            if is_seen or gap == 0 or at_ms - end > GAP_MS:
                break
        elif at_ms >= end:
            is_seen = True
        if low is None and not gap:
            low = (at_ms, rss)
        if at_ms - max(end, grown_ms) > rest_ms + gap:
            break
        if rss > high[1]:
            grown_ms = at_ms if rss > high[1] + _GROWS else grown_ms
            high = (at_ms, rss)
    share = RESULT_SHARE
    if low is None:
        low, share = (begin, min(PYTHON_BYTES, high[1])), UNSEEN_SHARE
    rise = Rise(low[0], high[0], low[1], high[1])
    if rise.bytes >= JUMP_BYTES and size >= share * rise.bytes:
        return rise
    return Rise(begin, end, 0, 0) if not is_seen and size >= RESULT_UNSEEN else None


def _collected(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield large results where no process of the driver was sampled, as in the log of
    another program.
    """
    for stage in metrics.stages:
        if stage.totals.result_bytes >= JUMP_BYTES and stage.name.startswith(_COLLECTS):
            title = f"{volume(stage.totals.result_bytes)} of results went to the driver"
            yield named("collected_to_driver", title, f"stage {stage.stage}, {stage.name}")


def _quiet_rises(metrics: RunMetrics, value: Value) -> list[Rise]:
    """Return the rises while no task ran, the largest first."""
    points = [
        (sample, amount) for sample in metrics.samples if (amount := value(sample)) is not None
    ]
    rises = []
    first = 0
    for number, (sample, amount) in enumerate(points):
        while not _is_near(points[first][0], sample, points[max(0, number - 1)][0]):
            first += 1
        # What rose while tasks ran before is not what rose after them.
        idle = max((end for begin, end in metrics.task_spans if begin < sample.at_ms), default=0)
        earlier = [
            (before.at_ms, low) for before, low in points[first:number] if before.at_ms >= idle
        ]
        start = number - len(earlier)
        if first < start:
            # The last sample before, if most of the time since then was without tasks.
            before, low = points[start - 1]
            gap = points[start][0].at_ms - before.at_ms
            passed = sample.at_ms - before.at_ms
            if gap > DENSE_MS and sample.at_ms - idle >= QUIET_SHARE * passed:
                earlier.append((before.at_ms, low))
        if not earlier or idle > sample.at_ms:
            continue
        low_at, low = min(earlier, key=lambda point: point[1])
        rise = Rise(low_at, sample.at_ms, low, amount)
        if rise.bytes >= JUMP_BYTES:
            rises.append(rise)
    return sorted(rises, key=lambda rise: -rise.bytes)


def _is_near(earlier: Sample, later: Sample, before: Sample) -> bool:
    """Return whether a rise from one sample to the other is a jump: in little time, or
    in little CPU of the run. ``before``: the sample before ``later``.
    """
    passed, gap = later.at_ms - earlier.at_ms, later.at_ms - before.at_ms
    most = JUMP_MS + 2 * gap if DENSE_MS < gap <= GAP_MS else JUMP_MS
    if passed <= most or earlier.cpu_ms is None or later.cpu_ms is None:
        return passed <= most
    return passed <= SLOW_JUMP_MS and later.cpu_ms - earlier.cpu_ms <= JUMP_CPU_MS


def _pickled(metrics: RunMetrics, rise: Rise) -> Finding | None:
    """Return the finding of a rise of Python while it wrote a file: broadcast(),
    parallelize() and createDataFrame() pickle to one.
    """
    # What is broadcast is made first, and pickled then.
    tasks = min(
        (begin for begin, _ in metrics.task_spans if begin >= rise.end_ms),
        default=rise.end_ms + PICKLING_MS,
    )
    until = rise._replace(end_ms=min(tasks, rise.end_ms + PICKLING_MS))
    written = _change(metrics, until, lambda sample: sample.python_written_bytes)
    if written is None or written < PICKLED_SHARE * rise.bytes:
        return None
    title = (
        f"the driver's Python rose by {volume(rise.bytes)} to {volume(rise.high)} in {_seconds(rise)} s while "
        f"{volume(written)} were pickled to a file, as for a broadcast"
    )
    return named("driver_python_jump", title, _describe_begin(metrics, rise))


def _py4j(metrics: RunMetrics, rise: Rise) -> Finding | None:
    """Return the finding of a rise of the heap with which Python rose, too, while the JVM
    moved bytes.
    """
    near = Rise(rise.begin_ms, rise.end_ms + JUMP_MS, 0, 0)
    python = _change(metrics, near, lambda sample: sample.driver_python_rss)
    moved = _change(metrics, near, lambda sample: sample.jvm_moved_bytes)
    if python is None or python < TOGETHER_SHARE * rise.bytes:
        return None
    if moved is not None and moved < MOVED_SHARE * python:
        return None
    title = (
        f"the driver's heap rose by {volume(rise.bytes)} to {volume(rise.high)} in {_seconds(rise)} s and its Python "
        f"by {volume(python)} while no task ran: an object comes through Py4J"
    )
    return named("driver_heap_jump", title, _describe_begin(metrics, rise))


def _change(metrics: RunMetrics, rise: Rise, value: Value) -> int | None:
    """Return by how much a value rose meanwhile, until the next sample where these are far
    apart; None where it was not measured.
    """
    values = []
    before_ms = None
    for sample in metrics.samples:
        is_next = before_ms is not None and before_ms < rise.end_ms < sample.at_ms
        is_far = before_ms is not None and DENSE_MS < sample.at_ms - before_ms <= GAP_MS
        before_ms = sample.at_ms
        is_within = rise.begin_ms <= sample.at_ms <= rise.end_ms or (is_next and is_far)
        if is_within and (amount := value(sample)) is not None:
            values.append(amount)
    return max(values) - values[0] if len(values) > 1 else None


def _seconds(rise: Rise) -> str:
    return f"{(rise.end_ms - rise.begin_ms) / 1000:.0f}"


def _describe_begin(metrics: RunMetrics, rise: Rise) -> str:
    return f"{dates.to_second(rise.begin_ms)} UTC, {(rise.begin_ms - metrics.began_ms) / 1000:.0f} s after the begin"


LEAK_BYTES: Final = 100 * MB
LEAK_FACTOR: Final = 1.5
LEAK_MS: Final = 8_000
#: So many tasks one after the other; the first ones load what they work with.
LEAK_ROUNDS: Final = 5
#: Each third of the time has at least this share of the rise, and no single step more
#: than half of it.
LEAK_THIRD: Final = 0.15
LEAK_STEP: Final = 0.5
_LEAST_SAMPLES: Final = 6
#: Of samples that are far apart; a step may be this share of the rise then.
_LEAST_SPARSE: Final = 3
LEAK_STEP_SPARSE: Final = 0.75
_ALL_WORKERS: Final = -1
#: A heap of which this share is in use is full: a part of it is kept free for copying.
FULL_HEAP: Final = 0.85
_PY4J: Final = re.compile(r"getOutputCommand|py4j\.Protocol")
_UNREACHED: Final = re.compile(r"Failed to connect to (?:driver|master)[^\n]*")
#: In client mode YARN's application master connects to the driver, and logs only its
#: address. A driver that lives tells of the master's end: one that ended itself could
#: not be reached, either.
_MASTER_UNREACHED: Final = re.compile(r"(?<=YARN: )[^\n]*Failed to connect to [^\n]*")
_MASTER_ENDED: Final = "YARN application has "


#: Spark warns of both from 1,000 KiB on; this much costs time.
CLOSURE_BYTES: Final = 4 << 20
_CLOSURE: Final = re.compile(
    r"Broadcasting large task binary with size (?P<binary>[\d.]+ [KMG]iB)"
    r"|contains a task of very large size \((?P<task>\d+) KiB\)"
)
#: Python that pickles as much for each of some jobs pickles a function with its data.
CLOSURE_WRITTEN: Final = 8 * MB
CLOSURE_TIMES: Final = 3
PICKLED: Final = "the driver's Python"
#: A result is at least this share of the text that a program writes of it.
STORED_SHARE: Final = 0.05


def driver_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield the findings of the driver and of Python workers."""
    is_left = any(_MASTER_ENDED in line for line in metrics.log_lines)
    for line in metrics.log_lines:
        match = _UNREACHED.search(line) or (_MASTER_UNREACHED.search(line) if is_left else None)
        if match is not None:
            yield named("driver_unreachable", match[0][:160], "the driver's log", "error")
            break
    if any(_PY4J.search(line) for line in metrics.log_lines):
        title = "py4j.Protocol.getOutputCommand is in the driver's log: an object became text, in many copies"
        yield named("py4j_object", title, "the driver's log", "error")
    yield from _full_heap(metrics)
    texts_by_place = (
        ("the driver's log", metrics.log_lines),
        ("tasks", [*metrics.failures, *metrics.stage_failures]),
        ("a query", [query.error for query in metrics.queries if query.error]),
    )
    for where, texts in texts_by_place:
        full = next((text for text in texts if OUT_OF_MEMORY.search(text)), None)
        if full is not None:
            is_executor = where == "tasks" and not metrics.is_local
            role = "executor" if is_executor else "driver"
            title = f"no heap was left: {full[:160]}"
            yield named("heap_space", title, where, "error", role=role)
    yield from growth_findings(metrics)
    yield from _closure(metrics)
    yield from _leak(metrics)


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
    yield named("heap_space", title, "the driver's heap", "error", role="driver")


def _closure(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield data that travel with functions or tasks: by Spark's warning, or by what
    Python pickled for each of several jobs.
    """
    title, where = "", "the driver's log"
    written = _pickled_by_job(metrics)
    for size in written:
        begins = sum(0.8 * size <= another <= 1.25 * size for another in written)
        if size >= CLOSURE_WRITTEN and begins >= CLOSURE_TIMES:
            title = f"Python pickled {volume(size)} for each of {begins} jobs: their functions carry data"
            where = PICKLED
            break
    for line in () if title else metrics.log_lines:
        if (match := _CLOSURE.search(line)) is not None:
            text = match["binary"] or f"{match['task']} KiB"
            if (sizes.size(text.replace(" ", "").replace("iB", "")) or 0) >= CLOSURE_BYTES:
                title = f"a task has {text} of data of its own"
                break
    if title:
        yield named("large_closure", title, where)


def _pickled_by_job(metrics: RunMetrics) -> list[int]:
    """Return what Python wrote to files before each stage that is the first of its job.

    What is written after a result of about that size may be the result, as a program
    stores a table for each day.
    """
    points = [
        (sample.at_ms, sample.python_written_bytes)
        for sample in metrics.samples
        if sample.python_written_bytes is not None
    ]
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(points)]
    # Between samples that are far apart many jobs may have begun.
    if not gaps or max(gaps) > GAP_MS:
        return []
    written, before, result_bytes = [], points[0][1], 0
    for stage in sorted(metrics.stages, key=lambda stage: stage.submitted_ms or 0):
        if stage.submitted_ms is None:
            continue
        # The sample after the begin has all that was written before it.
        now = next((value for at, value in points if at >= stage.submitted_ms), None)
        if now is not None and now > before:
            if result_bytes < STORED_SHARE * (now - before):
                written.append(now - before)
            before, result_bytes = now, 0
        result_bytes += stage.totals.result_bytes
    return written


def _leak(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield a worker that grows over the ends of tasks: what a task needs itself, it
    gives back or keeps once.
    """
    by_pid: dict[int, list[tuple[int, int]]] = {}
    for sample in metrics.samples:
        # A process that ends has given its pages back before it is gone.
        if sample.largest_worker is not None and sample.largest_worker_rss:
            point = (sample.at_ms, sample.largest_worker_rss)
            by_pid.setdefault(sample.largest_worker, []).append(point)
            by_pid.setdefault(_ALL_WORKERS, []).append(point)
    # Samples that are far apart meet each of several workers too seldom.
    every = by_pid.pop(_ALL_WORKERS, [])
    times = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(every)]
    is_sparse = bool(times) and statistics.median(times) > DENSE_MS
    if is_sparse:
        by_pid = {every_pid: every for every_pid in list(by_pid)[:1]}
    for pid, sampled in by_pid.items():
        # Without samples of a worker that had nothing to do and stayed as it was.
        points = sampled[:1]
        for at, rss in sampled[1:]:
            before = bisect_right(metrics.task_spans, at, key=lambda span: span[0])
            is_busy = before > 0 and at <= metrics.task_spans[before - 1][1]
            if is_busy or not 0.98 * points[-1][1] <= rss <= points[-1][1]:
                points.append((at, rss))
        (first_at, first), (last_at, last) = points[0], points[-1]
        least = _LEAST_SPARSE if is_sparse else _LEAST_SAMPLES
        if len(points) < least or last_at - first_at < LEAK_MS:
            continue
        # Few samples tell a leak from a start less well.
        rise = LEAK_BYTES if len(points) >= _LEAST_SAMPLES else 1.5 * LEAK_BYTES
        if last - first < rise or last < LEAK_FACTOR * first or not _keeps_rising(points):
            continue
        stages = [
            stage
            for stage in metrics.stages
            if (stage.submitted_ms or 0) < last_at
            and (stage.completed_ms or last_at) > first_at
            and stage.totals.tasks
        ]
        rounds = sum(stage.totals.tasks for stage in stages) / max(
            sizes.parallel_tasks(metrics), 1
        )
        longest_ms = max((stage.task_ms.median for stage in stages), default=0)
        if rounds < LEAK_ROUNDS or last_at - first_at < 3 * longest_ms:
            continue  # a few tasks may well need it
        change = f"from {volume(first)} to {volume(last)}"
        title = f"a Python worker grew {change} in {(last_at - first_at) / 1000:.0f} s"
        yield named("python_worker_leak", f"{title}, over many tasks", f"worker {pid}")
        return


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
    if len(points) < _LEAST_SAMPLES:
        steps = [after - before for (_, before), (_, after) in itertools.pairwise(points)]
        return all(
            LEAK_THIRD * rise <= step_rise <= LEAK_STEP_SPARSE * rise for step_rise in steps
        )
    # By numbers of samples, or by time: they are not equally far apart.
    first, last = points[0][0], points[-1][0]
    every_bounds = (
        [points[(len(points) - 1) * number // 3][1] for number in range(4)],
        [_value_at(points, first + (last - first) * number / 3) for number in range(4)],
    )
    return step <= LEAK_STEP * rise and any(
        all(after - before >= LEAK_THIRD * rise for before, after in itertools.pairwise(bounds))
        for bounds in every_bounds
    )


def _value_at(points: list[tuple[int, int]], at_ms: float) -> float:
    """Return the value between two points by a line through them."""
    for (before_ms, before), (after_ms, after) in itertools.pairwise(points):
        if at_ms <= after_ms:
            share = (at_ms - before_ms) / max(1, after_ms - before_ms)
            return before + share * (after - before)
    return points[-1][1]
