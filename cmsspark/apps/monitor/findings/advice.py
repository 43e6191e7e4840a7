"""Advice on memory, cores and partitions from the last measured runs of a job: formulas
on peaks of the worst executor.

A task had ``(heap − 300 MB) × spark.memory.fraction / tasks at once``; it needs what it
held at most and what it spilled. Partitions cost nothing, so they come first; the heap
grows only for stages whose number of tasks is fixed. The formulas are in
``docs/monitoring.md``. Advice is never applied by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import click
import msgspec
from msgspec import Struct, structs

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.findings.failures import WORKER_LIMIT
from cmsspark.apps.monitor.findings.stages import (
    SPILL_BYTES,
    SpillCure,
    find_skew,
    skew_join_cure,
    spill_cure,
    task_memory,
    tasks_at_once,
)
from cmsspark.apps.monitor.measured_runs import with_events
from cmsspark.apps.monitor.memory_sizes import MIB, Worst, find_worst
from cmsspark.base.errors import UsageError
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.cli.options import run_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import find_job
from cmsspark.store.run_metrics import RunMetrics

_ENOUGH_RUNS: Final = 3
_SHORT_MS: Final = 10_000


def rate_confidence(runs: Sequence[RunMetrics]) -> str:
    """``high`` from three runs of at least 10 s of task time that succeeded, ``medium``
    from one, else ``low``.
    """
    long = [run for run in runs if run.totals.run_ms >= _SHORT_MS and run.state == "DONE"]
    if len(long) >= _ENOUGH_RUNS:
        return "high"
    return "medium" if long else "low"


#: Shares of the heap above which it grows and below which it may shrink, and of garbage
#: collection.
GROW_ABOVE: Final = 0.95
SHRINK_BELOW: Final = 0.70
GC_GROW: Final = 0.10
GC_SHRINK: Final = 0.05
GROW_BY: Final = 1.25
MOST_STEP: Final = 0.30
#: What is more than so many times its need shrinks to twice the need first: the peak of a
#: heap that is far too large is its own garbage.
FAR_TOO_LARGE: Final = 4
#: The peak of a heap that settles: where peaks fell with the heap most of them was garbage.
SETTLED: Final = 0.75
_LEAST_SLOPE: Final = 0.05
#: Smaller changes are none: memory that fits is not worth another run.
LEAST_GROW: Final = 0.05
LEAST_SHRINK: Final = 0.125
#: A heap that had nothing left grows to so many times its size: what it lacked is not known.
NO_HEAP_LEFT: Final = 2
#: A change helped if a figure is below this share of what it was.
HELPED: Final = 0.8
#: Addresses that a Python worker with its libraries takes at least.
WORKER_BYTES: Final = 2 << 30
_HEADROOM: Final = 1.2
_KILLED_FACTOR: Final = 1.5
LEAST_HEAP: Final = 512 * MIB
#: memory.fraction may be 0.7 from this heap on, with less storage than this share of
#: the unified memory.
_LARGE_HEAP: Final = 8 << 30
_LITTLE_STORAGE: Final = 0.05
#: Areas that Spark measures together: with one of them, those without an entry are zero.
_UNIFIED: Final = {
    "JVMHeapMemory",
    "OnHeapUnifiedMemory",
    "OnHeapStorageMemory",
    "OnHeapExecutionMemory",
}
_NO_UNIFIED: Final = "not known: no peak of the memory that executes and caches was measured"
_SKEWED: Final = "one task has more than its share, which neither memory nor partitions change"
_PARTITION_BYTES: Final = 128 * MIB
#: Rows take up to so many times what they take in a shuffle.
_UNPACKED: Final = 4


def advise(runs: Sequence[RunMetrics]) -> list[Advice]:
    """Advice from runs of one job, the latest first: for its executors, or for the
    driver where that does the work.
    """
    texts = {**_too_small_before(runs), **_not_helpful(runs)}
    return [
        entry.saying(texts[entry.subject]) if entry.subject in texts else entry
        for entry in _advise(runs)
    ]


def _too_small_before(runs: Sequence[RunMetrics]) -> dict[str, str]:
    """Return subject → what to say instead of making an option as small as it was in an
    earlier run for which it was advised to grow: without this the two would alternate.
    """
    measured = _measured(runs)
    texts = {}
    for entry in _advise(runs):
        option, goal = entry.option
        now = sizes.size(measured[0].options.get(option)) if measured and goal else None
        for number, run in enumerate(measured):
            before = sizes.size(run.options.get(option))
            if now is None or before is None or not (goal or 0) <= before < now:
                continue
            earlier = (advice.option for advice in _advise(measured[number:]))
            if any(name == option and (size or 0) > before for name, size in earlier):
                texts[entry.subject] = (
                    f"{measured[0].options[option]}; keep it: {run.options[option]} was too little for {run.run}"
                )
                break
    return texts


def _advise(runs: Sequence[RunMetrics]) -> list[Advice]:
    alike = alike_runs(runs)
    if not alike:
        reasons = {note for run in runs for note in run.notes}
        text = f"no run has figures of executors{f' ({min(reasons)})' if reasons else ''}"
        if runs and all(run.engine == "processes" for run in runs):
            text = (
                "the job runs by processes of this host, without a JVM; run it with --engine spark "
                "to measure it"
            )
        return [Advice("memory", f"not known: {text}")]
    latest, role = alike[0], _working_role(alike[0])
    worst = find_worst(alike, role)
    confidence = rate_confidence(alike)
    partitions = sizes.shuffle_partitions(latest.options)
    cure = spill_cure(alike, role)
    skew = list(_skew(latest))
    if skew and cure is None:
        worst.spilled = 0  # more memory changes nothing for it
    overhead = _overhead(worst, latest, role, confidence)
    settled = _settled_heap(runs, role, sizes.heap(latest.options, role), worst.heap)
    heap = _heap(worst, latest, role, confidence, cure, settled)
    heap = _within_node(heap, overhead, latest, role)
    drivers = []
    driver = find_worst(alike, "driver")
    if role == "executor" and driver.heap_space:
        # Tasks run elsewhere: its heap has results and broadcasts.
        drivers.append(_heap(driver, latest, "driver", confidence))
    parts = list(_partitions(alike, latest, cure))
    keep_text = f"{_written(sizes.heap(latest.options, role))}; keep it"
    if skew:
        heap = heap.saying(f"{keep_text}: {_SKEWED}")
    elif any(entry.aim == "tiny" for entry in parts):
        # A task of fewer partitions needs more of it.
        heap = heap.saying(f"{keep_text} while the partitions change")
    advice = [*skew, *drivers, heap, overhead, *_results(latest), *_worker_limit(alike, role)]
    advice += [
        _fraction(worst, latest, role, confidence, heap),
        _off_heap(worst, latest, cure),
        _cores(worst, latest, heap),
    ]
    if any(entry.subject == "partitions" for entry in skew):
        parts = [entry for entry in parts if entry.subject != "partitions"]
    elif skew and cure is None:
        parts = [Advice("partitions", f"{partitions}; keep them: {_SKEWED}")]
    return [*advice, *parts]


def _not_helpful(runs: Sequence[RunMetrics]) -> dict[str, str]:
    """Return subject → what to say instead of advising it again: the latest run had the
    value that the runs before it were advised, and its trouble is as large as before.
    """
    ended = _measured(runs)
    if len(ended) < 2:
        return {}
    latest, before = ended[0], ended[1]
    texts = {}
    for entry in _advise(ended[1:]):
        option, _, value = (entry.conf or "").partition("=")
        if not entry.aim or latest.options.get(option) != value:
            continue
        was, now = (_trouble(run, entry.aim) for run in (before, latest))
        if was and now >= HELPED * was:
            change = f"{before.options.get(option, 'the default')} → {value}"
            texts[entry.subject] = (
                f"{value}; {change} did not help ({_figure(entry.aim, was)} before, {_figure(entry.aim, now)} now): "
                "what would is not known from these runs"
            )
    return texts


#: What advice is against → the finding that says whether it is there.
_CODES: Final = {
    "cached": "cache_does_not_fit",
    "full": "heap_space",
    "killed": "container_killed",
    "limit": "python_memory_limit",
    "results": "max_result_size",
    "tiny": "tiny_tasks",
}


def _trouble(run: RunMetrics, aim: str) -> float:
    """Return how large a trouble of a run is, by the name of what advice is against."""
    if aim == "spilled":
        return run.totals.disk_spilled_bytes
    if aim == "garbage":
        return run.totals.gc_ms / run.totals.run_ms if run.totals.run_ms else 0.0
    return float(_has_finding(run, _CODES[aim]))


def _figure(aim: str, value: float) -> str:
    if aim == "spilled":
        return f"{volume(value)} spilled"
    return f"{value:.0%} of GC" if aim == "garbage" else _CODES[aim]


def _skew(run: RunMetrics) -> Iterator[Advice]:
    """Yield the cure of a task with more than its share: no memory and no number of
    partitions is one.
    """
    for stage in run.stages:
        skew = find_skew(run, stage)
        if skew is None or stage.totals.disk_spilled_bytes < SPILL_BYTES:
            continue
        text = f"stage {stage.stage}: {skew.title}"
        if skew.is_input:
            yield Advice("skew", f"{text}: write its input in smaller pieces")
            return
        options, _ = skew_join_cure(run, stage, skew)
        text += ": spread its key first; memory changes nothing for it"
        yield Advice("skew", text)
        for option, value in options.items():
            yield Advice(
                "partitions" if option == sizes.PARTITIONS_OPTION else "skew join",
                f"{value}: adaptive execution divides a partition that is above its limit, and above 5 medians",
                f"{option}={value}",
                "",
                "limit: half of the partition; partitions: 10 × the others / the largest",
                "medium",
                "spilled",
            )
        return


RESULT_OPTION: Final = "spark.driver.maxResultSize"


def _results(run: RunMetrics) -> Iterator[Advice]:
    """Yield the limit of results, where they were larger."""
    if not _has_finding(run, "max_result_size"):
        return
    now = sizes.size(run.options.get(RESULT_OPTION)) or sizes.HEAP
    # Of a stage that was ended by it some tasks had ended; the others give as much.
    size = max(
        (
            stage.totals.result_bytes * stage.task_count // ended
            for stage in run.stages
            if (
                ended := stage.totals.tasks - stage.totals.failed_tasks - stage.totals.killed_tasks
            )
            > 0
        ),
        default=0,
    )
    goal = sizes.as_option(max(2 * now, int(GROW_BY * size)))
    yield Advice(
        "results",
        f"{_written(now)} → {goal}: they were larger; better aggregate, limit() or write them",
        f"{RESULT_OPTION}={goal}",
        f"results of the largest stage some {volume(size)}, by those of its tasks that ended",
        "max(2 × the limit, 1.25 × the results)",
        "low",
        "results",
    )


def _worker_limit(runs: Sequence[RunMetrics], role: str) -> Iterator[Advice]:
    """Yield the limit of Python workers, where one got no memory."""
    latest = runs[0]
    limit = sizes.size(latest.options.get(WORKER_LIMIT), "m")
    if not _has_finding(latest, "python_memory_limit"):
        return
    if limit is None:
        yield Advice(
            "Python workers", "not known: a limit outside of Spark (ulimit -v) stopped one"
        )
        return
    slots = tasks_at_once(latest, role)
    goal = sizes.as_option(max(2 * limit, slots * WORKER_BYTES))
    yield Advice(
        "Python workers",
        f"{_written(limit)} → {goal}: a worker reached its limit of addresses",
        f"{WORKER_LIMIT}={goal}",
        f"{pluralize(slots, 'task')} at once, {volume(limit / slots)} of addresses each",
        "max(2 × the limit, 2 GiB × tasks at once)",
        "medium",
        "limit",
    )


def alike_runs(runs: Sequence[RunMetrics]) -> list[RunMetrics]:
    """Return the runs that are compared: those with the options of the latest one, as other
    options make other peaks, and end a trouble.
    """
    spark = _measured(runs)
    return [run for run in spark if run.options == spark[0].options]


def _measured(runs: Sequence[RunMetrics]) -> list[RunMetrics]:
    return [run for run in runs if run.engine == "spark" and run.executors]


def _working_role(run: RunMetrics) -> str:
    """Return which JVM works: in local mode the driver."""
    return "driver" if run.is_local else "executor"


def _settled_heap(runs: Sequence[RunMetrics], role: str, now: int, peak: int) -> int | None:
    """Return the heap of which the peak would be 75 %, by a line through the peaks of two
    heaps; None if no larger heap had a larger peak.
    """
    larger = [run for run in _measured(runs) if sizes.heap(run.options, role) > now]
    if not larger:
        return None
    before = sizes.heap(larger[0].options, role)
    earlier = [run for run in larger if sizes.heap(run.options, role) == before]
    slope = (find_worst(earlier, role).heap - peak) / (before - now)
    if slope < _LEAST_SLOPE:
        return None
    fixed = peak - slope * now
    return int(fixed / (SETTLED - slope)) if slope < SETTLED and fixed > 0 else now


def _heap(
    worst: Worst,
    run: RunMetrics,
    role: str,
    confidence: str,
    cure: SpillCure | None = None,
    settled: int | None = None,
) -> Advice:
    subject, now = f"{role} heap", sizes.heap(run.options, role)
    if not worst.heap and not worst.heap_space:
        return Advice(
            subject,
            "not known: no peak of the heap was measured (runs too short, or processes too young)",
        )
    fraction = sizes.share(run.options.get("spark.memory.fraction"), sizes.FRACTION)
    unified = (
        int(worst.unified / (fraction or sizes.FRACTION)) + sizes.RESERVED if worst.unified else 0
    )
    need = max(unified, int(_HEADROOM * worst.heap))
    share = worst.heap / now
    inputs = (
        f"heap peak {volume(worst.heap)} = {share:.0%} of {volume(now)}, unified peak {volume(worst.unified)}, "
        f"GC {worst.gc_share:.1%}, spilled {volume(worst.spilled)}"
    )
    by_peak = volume(_HEADROOM * worst.heap)
    formula = (
        f"max(unified / {fraction:g} + 300 MB = {volume(unified)}, 1.2 × heap peak = {by_peak})"
    )
    has_fixed_tasks = worst.spilled > 0 if cure is None else cure.heap is not None
    is_full = share > GROW_ABOVE and (cure is None or cure.partitions is None)
    reasons = [
        text
        for text, holds in (
            (f"the peak is above {GROW_ABOVE:.0%}", is_full),
            (f"GC takes more than {GC_GROW:.0%}", worst.gc_share > GC_GROW),
            ("tasks spilled", has_fixed_tasks),
            ("no heap was left", worst.heap_space),
        )
        if holds
    ]
    if reasons and cure is not None and cure.heap is not None:
        inputs += f"; {cure}"
        formula += "; for spills: need of a task × tasks at once / fraction + 300 MB"
    basis = Advice(subject, f"{_written(now)} fits; keep it", None, inputs, formula, confidence)
    of_cache = _cache_need(worst, run, fraction or sizes.FRACTION)
    if of_cache > now:
        reasons.append("cached blocks found no room in it")
        inputs += f", cached blocks on disk {volume(worst.cached_on_disk)}"
        formula += "; for a cache: 1.2 × (unified + on disk) / fraction + 300 MB"
    if reasons:
        of_tasks = cure.heap or 0 if cure else 0
        counted = max(of_tasks, of_cache)
        # What tasks spilled and what was cached is known; how much more garbage needs is not:
        # that goes in steps. Nor is what a heap lacked that had nothing left: twice as much.
        step = NO_HEAP_LEFT if worst.heap_space else 1 + MOST_STEP
        goal = max(need, int(GROW_BY * now), int(step * now) if worst.heap_space else 0, counted)
        most = max(int(step * now), counted)
        aim = "full" if worst.heap_space else "spilled" if of_tasks else ""
        aim = aim or ("cached" if of_cache > now else "")
        aim = aim or ("garbage" if worst.gc_share > GC_GROW else "")
        basis = structs.replace(basis, aim=aim)
        return _sized(basis, f"spark.{role}.memory", now, goal, " and ".join(reasons), most)
    if cure is not None:
        supply_text = (
            "off-heap memory gives" if cure.off_heap is not None else "more partitions give"
        )
        return basis.saying(f"{basis.text}: {supply_text} tasks that spilled what they need")
    if not worst.has_succeeded:
        return basis.saying(
            f"{_written(now)}; keep it: no run succeeded, so the peak is a lower bound"
        )
    goal = max(need, LEAST_HEAP)
    if settled is not None:
        goal = max(unified, settled, LEAST_HEAP)
        formula += f"; the peak fell with the heap: to where it would be {SETTLED:.0%}"
        basis = structs.replace(basis, formula=formula)
    if share < SHRINK_BELOW and worst.gc_share < GC_SHRINK and goal < now:
        # The garbage of a large heap is collected late: its peak is above what is needed.
        reason = f"the peak is below {SHRINK_BELOW:.0%} and GC below {GC_SHRINK:.0%}"
        option, is_known = f"spark.{role}.memory", settled is not None
        return _sized(basis, option, now, goal, reason, is_known=is_known)
    return basis


def _cache_need(worst: Worst, run: RunMetrics, fraction: float) -> int:
    """Return the heap that has room for what was cached, or a quarter more where it is not
    known how much had none; 0 where all had.
    """
    if not _has_finding(run, "cache_does_not_fit"):
        return 0
    if not worst.cached_on_disk:
        return int(GROW_BY * sizes.heap(run.options, _working_role(run)))
    return int(_HEADROOM * (worst.unified + worst.cached_on_disk) / fraction) + sizes.RESERVED


def _has_finding(run: RunMetrics, code: str) -> bool:
    return any(finding.code == code for finding in run.findings)


def _written(count: int) -> str:
    """Bytes as an option has them, so that it can be compared with the advice."""
    return sizes.as_option(count, MIB)


def _within_node(heap: Advice, overhead: Advice, run: RunMetrics, role: str) -> Advice:
    """Return the advice on the heap, made smaller where the container would not fit
    into the smallest node.
    """
    node, container = run.smallest_node_bytes, sizes.executor_container(run.options)
    goal = sizes.size((heap.conf or "").partition("=")[2])
    now = sizes.heap(run.options, role)
    if role != "executor" or node is None or container is None or goal is None or goal <= now:
        return heap
    beside_now = sizes.overhead(run.options, role)
    overhead_bytes = sizes.size((overhead.conf or "").partition("=")[2]) or beside_now
    room = (node - (container - now - beside_now) - overhead_bytes) // (256 * MIB) * 256 * MIB
    if goal <= room:
        return heap
    limit = f"the smallest node has {volume(node)}"
    if room > 1.05 * now:
        return heap.saying(
            f"{_written(now)} → {_written(room)}: {limit}",
            f"spark.executor.memory={_written(room)}",
        )
    cure = "fewer cores in an executor, or more partitions"
    return heap.saying(f"{_written(now)} is too little and {limit}: {cure}")


def _sized(
    basis: Advice,
    option: str,
    now: int,
    goal: int,
    reason: str,
    most: int = 0,
    is_known: bool = False,
) -> Advice:
    """Advise on a size that goes from ``now`` to ``goal``, but not beyond ``most``; if it
    is far too large, to twice the goal first, unless that is known from two sizes.
    """
    if now > FAR_TOO_LARGE * goal and not is_known:
        goal *= 2
        step = f"; more than {FAR_TOO_LARGE} times too large: to twice the need first, measure again after it"
        basis = structs.replace(basis, formula=basis.formula + step)
    value = _rounded(now, goal, most)
    size = sizes.size(value) or 0
    least = LEAST_SHRINK if goal < now else LEAST_GROW
    if abs(size - now) < least * now or (goal < now) != (size < now):
        return basis
    if most:
        step = f"; a step is at most {most / now - 1:.0%}, measure again after it"
        basis = structs.replace(basis, formula=basis.formula + step)
    return basis.saying(f"{_written(now)} → {value}: {reason}", f"{option}={value}")


def _rounded(now: int, goal: int, most: int) -> str:
    """Return the goal in steps of 256 MiB, or of 1 MiB where those pass ``most``. What
    shrinks by less than such a step stays.
    """
    goal = min(goal, most or goal)
    value = sizes.as_option(goal)
    size = sizes.size(value) or 0
    if goal < now <= size:
        return sizes.as_option(now, MIB)
    if most and size > most:
        # Down for a goal that is the most, up for what is needed.
        value = sizes.as_option(goal - goal % MIB if goal == most else goal, MIB)
    return value


def _overhead(worst: Worst, run: RunMetrics, role: str, confidence: str) -> Advice:
    subject = f"{role} overhead"
    now, heap = sizes.overhead(run.options, role), sizes.heap(run.options, role)
    if role == "driver" and run.deploy_mode != "cluster":
        return Advice(subject, "of no effect: the driver runs on this host, in no container")
    # A container that was killed takes its last figures with it: that it was too small
    # is known all the same.
    if not (worst.jvm_rss or worst.python or worst.killed):
        reason = "spark.executor.processTreeMetrics.enabled is off, or the system has no /proc"
        return Advice(subject, f"not known: no memory of processes was measured ({reason})")
    beyond = max(0, worst.jvm_rss - heap)
    need = max(
        sizes.LEAST_OVERHEAD, int(_HEADROOM * (beyond + worst.python + worst.other_processes))
    )
    formula = "max(384 MB, 1.2 × (max(0, JVM RSS − heap) + Python + other))"
    if worst.killed:
        need, formula = (
            max(need, int(_KILLED_FACTOR * now)),
            f"max({formula}, 1.5 × {volume(now)}: it was killed)",
        )
    inputs = f"JVM RSS {volume(worst.jvm_rss)}, Python {volume(worst.python)}, other {volume(worst.other_processes)}"
    basis = Advice(subject, f"{_written(now)} fits; keep it", None, inputs, formula, confidence)
    basis = structs.replace(basis, aim="killed" if worst.killed else "")
    if need > now or (need < SHRINK_BELOW * now and worst.has_succeeded):
        return _sized(
            basis, f"spark.{role}.memoryOverhead", now, need, "what is outside of the heap"
        )
    return basis


def _fraction(
    worst: Worst, run: RunMetrics, role: str, confidence: str, advised_heap: Advice
) -> Advice:
    now = sizes.share(run.options.get("spark.memory.fraction"), sizes.FRACTION)
    if not worst.areas & _UNIFIED:
        return Advice("memory fraction", _NO_UNIFIED)
    heap = sizes.heap(run.options, role)
    inputs = f"heap {volume(heap)}, storage peak {volume(worst.storage)}, unified peak {volume(worst.unified)}"
    formula = "0.7 only for heaps of 8 GB and more with almost no storage; else 0.6"
    full = worst.unified > 0.9 * now * (heap - sizes.RESERVED)
    basis = Advice("memory fraction", f"{now:g} fits; keep it", None, inputs, formula, confidence)
    if advised_heap.conf is not None:
        # Both divide the same memory: one at a time.
        return basis.saying(f"{now:g}; keep it while the heap changes")
    if (
        heap >= _LARGE_HEAP
        and worst.storage < _LITTLE_STORAGE * max(worst.unified, 1)
        and full
        and now < 0.7
    ):
        return basis.saying(
            f"{now:g} → 0.7: execution fills its part of a large heap", "spark.memory.fraction=0.7"
        )
    return basis


def _off_heap(worst: Worst, run: RunMetrics, cure: SpillCure | None) -> Advice:
    now = sizes.off_heap(run.options)
    inputs = f"off-heap peak {volume(worst.off_heap_used)}, direct buffers {volume(worst.direct)}"
    if not now:
        text = "off; what it would gain cannot be known from runs without it"
        return Advice("off-heap memory", text, None, inputs)
    goal = max(256 * MIB, int(_HEADROOM * worst.off_heap_used))
    formula = "max(256 MB, 1.2 × off-heap peak)"
    basis = Advice(
        "off-heap memory", f"{_written(now)} fits; keep it", None, inputs, formula, "medium"
    )
    if cure is not None and cure.off_heap is not None:
        inputs += f"; {cure}"
        basis = structs.replace(
            basis, inputs=inputs, formula="need of a task × tasks at once", aim="spilled"
        )
        reason = "with it on, tasks execute there, and they spilled"
        return _sized(basis, "spark.memory.offHeap.size", now, cure.off_heap, reason)
    if goal < SHRINK_BELOW * now or worst.off_heap_used > GROW_ABOVE * now:
        return _sized(basis, "spark.memory.offHeap.size", now, goal, "its peak")
    return basis


def _cores(worst: Worst, run: RunMetrics, heap: Advice) -> Advice:
    if run.is_local:
        return Advice(
            "cores", "of no effect: local mode uses the cores of this host (--master 'local[N]')"
        )
    if not worst.has_times:
        return Advice("cores", "not known: no time of a task was measured")
    now = sizes.count(run.options.get("spark.executor.cores"), 1)
    inputs = f"{pluralize(now, 'core')}, GC {worst.gc_share:.1%}"
    formula = "one less where GC takes more than 10 % and the heap cannot grow, not below 2"
    fits = f"{now} fit{'s; keep it' if now == 1 else '; keep them'}"
    basis = Advice("cores", fits, None, inputs, formula, "low")
    if worst.gc_share > GC_GROW and now > 2 and heap.conf is None:
        return basis.saying(
            f"{now} → {now - 1}: fewer tasks share the heap", f"spark.executor.cores={now - 1}"
        )
    return basis


def _partitions(
    runs: Sequence[RunMetrics], latest: RunMetrics, cure: SpillCure | None
) -> Iterator[Advice]:
    """Yield parts of the largest shuffle of at most 128 MB, and small enough for tasks
    that spilled.
    """
    read = max(
        (stage.totals.shuffle_read_bytes for run in runs for stage in run.stages), default=0
    )
    now = sizes.shuffle_partitions(latest.options)
    if not read:
        yield Advice("partitions", "not known: no stage read a shuffle")
        return
    cores = max(1, sizes.parallel_tasks(latest))
    goal = max(1, -(-read // _PARTITION_BYTES))
    goal = -(-goal // cores) * cores
    inputs, formula = (
        f"largest shuffle {volume(read)}, {cores} cores",
        "shuffle bytes / 128 MB, in rounds of the cores",
    )
    reason = "parts of at most 128 MB"
    if cure is not None and cure.partitions is not None:
        goal, reason = max(goal, cure.partitions), "tasks that spilled need less each"
        inputs += f"; {cure}"
        formula = f"max({formula}; need of a task × tasks / memory of a task)"
    is_adaptive = sizes.is_adaptive(latest.options)
    fit = f"{now} fit; keep them{' (adaptive execution joins small ones)' if is_adaptive else ''}"
    basis = Advice("partitions", fit, None, inputs, formula, "medium")
    is_tiny = _has_finding(latest, "tiny_tasks") and not is_adaptive
    if is_tiny and cure is None:
        room = task_memory(latest, _working_role(latest))
        goal = -(-read // max(MIB, min(_PARTITION_BYTES, room // _UNPACKED)) // cores) * cores
        inputs += f"; a task has {volume(room)}"
        formula = "shuffle bytes / min(128 MB, memory of a task / 4), in rounds of the cores"
    if goal > now or (goal < now and is_tiny):
        reason = reason if goal > now else "their tasks do almost nothing, and nothing joins them"
        basis = basis.saying(f"{now} → {goal}: {reason}", f"{sizes.PARTITIONS_OPTION}={goal}")
        aim = "tiny" if goal < now else "spilled" if cure is not None else ""
        basis = structs.replace(basis, aim=aim)
    yield basis
    if cure is not None and cure.partition_bytes is not None:
        size = sizes.as_option(cure.partition_bytes - cure.partition_bytes % MIB or MIB, MIB)
        text = f"at most {size}: adaptive execution joined partitions until tasks spilled"
        conf = f"spark.sql.adaptive.advisoryPartitionSizeInBytes={size}"
        yield Advice(
            "partition size",
            text,
            conf,
            inputs,
            "shuffle bytes of the stage / partitions",
            "medium",
            "spilled",
        )


class Advice(Struct, frozen=True):
    """One piece of advice. ``conf``: the exact option; None where the value should
    stay, or nothing can be known.
    """

    subject: str
    #: What the option is now and what it should be, or why no advice is possible.
    text: str
    conf: str | None = None
    inputs: str = ""
    formula: str = ""
    #: ``high``, ``medium``, ``low``, or ``none`` where nothing can be known.
    confidence: str = "none"
    #: What it is against: ``spilled``, ``garbage`` or one of ``_CODES``; empty for what only
    #: fits better.
    aim: str = ""

    @property
    def option(self) -> tuple[str, int | None]:
        """Return the option that is to change, and its new size or number."""
        name, _, value = (self.conf or "").partition("=")
        return name, sizes.size(value)

    def saying(self, text: str, conf: str | None = None) -> Advice:
        """Return advice on the same subject, from the same figures, that says something else."""
        return structs.replace(self, text=text, conf=conf)


def lines(advice: Sequence[Advice]) -> Iterator[str]:
    """Yield advice as text."""
    for entry in advice:
        yield f"{entry.subject}: {entry.text}"
        if entry.conf:
            yield f"  --conf {entry.conf}"
        for name in ("inputs", "formula", "confidence"):
            if (value := getattr(entry, name)) not in ("", "none"):
                yield f"  {name:<12}{value}"


@click.command("advise", context_settings={"show_default": True})
@click.argument("job")
@click.option(
    "--runs", "count", type=click.IntRange(min=1), default=5, help="Runs that are compared."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@run_options
def command(job: str, count: int, as_json: bool, settings_file: str | None) -> None:
    """Advise on memory, cores and partitions of JOB: a built-in job, or the file name of a script.

    Takes the worst executor of the last runs. Each line has its inputs, formula and
    confidence; nothing is applied.
    """
    from cmsspark.apps.monitor.measured_runs import find_job_runs
    from cmsspark.apps.monitor.run_report import finding_lines

    state_dir = load_settings(settings_file).state_dir
    name = job
    with suppress(UsageError):
        name = find_job(job).name
    runs = [with_events(state_dir, run) for run in find_job_runs(state_dir, name, count)]
    advice = advise(runs)
    if as_json:
        document = {
            "job": job,
            "runs": [run.run for run in runs],
            "advice": msgspec.to_builtins(advice),
        }
        click.echo(json_text(document, indent=1))
        return
    alike = alike_runs(runs)
    left_out_text = (
        f" ({len(runs) - len(alike)} more had other options, or no figures)"
        if 0 < len(alike) < len(runs)
        else ""
    )
    compared_text = pluralize(len(alike or runs), "measured run")
    click.echo(f"{job}, from {compared_text}{left_out_text}, the latest {runs[0].run}:\n")
    for line in lines(advice):
        click.echo(readable(line))
    if findings := runs[0].findings:
        click.echo("\nFindings of the latest run:")
        for line in finding_lines(findings):
            click.echo(readable(f"  {line}"))
    if any(entry.conf for entry in advice):
        options = " ".join(f"--conf {entry.conf}" for entry in advice if entry.conf)
        click.echo(f"\nAll of it: run_spark {job} {options}")
