"""The charts and tables of the page *Spark*: memory, executors, time, stages and
processes of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from cmsspark.apps.dashboard.downloads import without_noughts
from cmsspark.apps.dashboard.run_index import RunView, by_role, over_time
from cmsspark.apps.dashboard.widgets import (
    Chart,
    Column,
    Figure,
    Figures,
    Kind,
    Table,
    make_table,
    ratio,
    si,
)
from cmsspark.base.text.terminal import pluralize
from cmsspark.pages.charts import thinned
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import ExecutorEntry, RunMetrics, StageEntry, TaskTotals

#: What is drawn over time, by its unit.
_UNITS: Final = {"B": "Memory", "%": "CPU of one core"}
#: Points of a line, and lines of a chart, at most.
_POINTS: Final = 240
_LINES: Final = 8
#: Stages of the timeline; all others are one line.
_STAGES: Final = 10
_SLICES: Final = 120
_SHOWN: Final = 40
#: Area of memory → what it is.
AREAS: Final[Mapping[str, str]] = {
    "JVMHeapMemory": "JVM heap",
    "JVMOffHeapMemory": "JVM off-heap",
    "OnHeapExecutionMemory": "execution, on heap",
    "OffHeapExecutionMemory": "execution, off heap",
    "OnHeapStorageMemory": "storage, on heap",
    "OffHeapStorageMemory": "storage, off heap",
    "OnHeapUnifiedMemory": "unified, on heap",
    "OffHeapUnifiedMemory": "unified, off heap",
    "DirectPoolMemory": "direct pool",
    "MappedPoolMemory": "mapped pool",
    "ProcessTreeJVMRSSMemory": "resident: JVM",
    "ProcessTreePythonRSSMemory": "resident: Python",
    "ProcessTreeOtherRSSMemory": "resident: other",
}
#: What a sample has of memory.
_MEMORY: Final = {
    "JVM of the driver": "driver_jvm_rss",
    "Python of the driver": "driver_python_rss",
    "Python workers": "workers_rss",
    "used heap": "heap_bytes",
}
_X: Final = "Seconds since the run began"
_OF_TASKS: Final = "of the run time of tasks"
_JVM_RSS, _PYTHON_RSS = "ProcessTreeJVMRSSMemory", "ProcessTreePythonRSSMemory"
#: Time of tasks → its label. The rest of a task's time is scheduling and waiting.
_TIMES: Final[Mapping[str, str]] = {
    "cpu_ms": "CPU in the JVM",
    "gc_ms": "garbage collection",
    "deserialize_ms": "deserializing tasks",
    "result_serialize_ms": "serializing results",
    "fetch_wait_ms": "waiting for shuffle data",
    "shuffle_write_ms": "writing shuffle data",
}


def figures(view: RunView) -> Figures:
    """Return the run in some numbers."""
    run, watched = view.measured, view.watched
    began = run.began_ms if run else watched.start_ms if watched else 0
    ended = (run.ended_ms if run else None) or (watched.end_ms if watched else None)
    shown = [
        Figure("State", (run.state if run else watched.status if watched else "") or "?"),
        Figure("Seconds", "–" if ended is None else f"{max(0, ended - began) / 1000:,.1f}"),
    ]
    if run is not None:
        totals = run.totals
        unwell = {"failed": totals.failed_tasks, "killed": totals.killed_tasks}
        note = ", ".join(f"{count:,} {name}" for name, count in unwell.items() if count)
        if totals.tasks:
            shown.append(Figure("Tasks", f"{totals.tasks:,}", note=note))
            shown.append(Figure("Stages", f"{run.stage_count or len(run.stages):,}"))
        if totals.gc_ms and totals.run_ms:
            share = totals.gc_ms / totals.run_ms
            shown.append(
                Figure("Garbage collection", f"{share:.1%}", note="of the run time of tasks")
            )
        volumes = {
            "Read by tasks": totals.input_bytes,
            "Written by tasks": totals.output_bytes,
            "Shuffled": totals.shuffle_write_bytes,
            "Spilled to disk": totals.disk_spilled_bytes,
        }
        shown += [
            Figure(name, si(size, "B"), f"{size:,} B") for name, size in volumes.items() if size
        ]
    times, sums = by_role(view.samples, "rss_bytes")
    if sums:
        most = int(max(sum(values) for values in zip(*sums.values(), strict=True)))
        # A process may have had more between two looks.
        note = f"all processes, the most of {pluralize(len(times), 'look')}"
        shown.append(Figure("Resident memory", si(most, "B"), f"{most:,} B", note=note))
    return Figures(shown)


def memory_areas(run: RunMetrics) -> Chart:
    """Peaks of each area of memory, by executor."""
    used = {
        area: label
        for area, label in AREAS.items()
        if any(entry.peaks.get(area) for entry in run.executors)
    }
    largest = sorted(run.executors, key=lambda entry: -max(entry.peaks.values(), default=0))[
        :_LINES
    ]
    series = {_name(entry): [entry.peaks.get(area) for area in used] for entry in largest}
    columns = [Column("area", "Area"), *(Column(name, name, "bytes") for name in series)]
    rows = [(label, *(entry.peaks.get(area) for entry in largest)) for area, label in used.items()]
    table = Table("memory_areas", columns, rows, "Largest value of each area, bytes")
    return Chart(
        "memory_areas",
        "Peak memory by area",
        "bar",
        list(used.values()),
        series,
        "B",
        "Area",
        "Memory",
        table=table,
    )


def memory_over_time(run: RunMetrics) -> Chart:
    """Return the processes of this host over time, as the measurement saw them."""
    looks = thinned(
        run.samples,
        lambda entry: (entry.driver_jvm_rss or 0) + (entry.driver_python_rss or 0),
        _POINTS,
    )
    columns = {
        name: [getattr(entry, measure) for entry in looks] for name, measure in _MEMORY.items()
    }
    series = {
        name: values
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
    times = [entry.at_ms for entry in looks]
    return _timed(
        "memory_over_time",
        "Memory over time",
        _labels(times, run.began_ms),
        series,
        "line",
        "bytes",
        "B",
    )


def active_tasks(run: RunMetrics) -> Chart:
    """Return the running tasks over time."""
    counted = [entry for entry in run.samples if entry.active_tasks is not None]
    looks = thinned(counted, lambda entry: entry.active_tasks or 0, _POINTS)
    series = {"tasks": [entry.active_tasks for entry in looks]}
    times = [entry.at_ms for entry in looks]
    return _timed(
        "active_tasks", "Active tasks", _labels(times, run.began_ms), series, "line", "count"
    )


def roles_over_time(view: RunView, measure: str) -> Chart:
    """Return resident memory, or CPU in percent of one core, by role."""
    times, sums = by_role(view.samples, measure)
    totals = [sum(values) for values in zip(*sums.values(), strict=True)]
    numbers = thinned(range(len(times)), totals.__getitem__, _POINTS)
    labels = _labels(
        [times[number] for number in numbers], view.watched.start_ms if view.watched else 0
    )
    series = {
        role: [round(values[number], 1) for number in numbers]
        for role, values in sorted(sums.items())
    }
    if measure == "rss_bytes":
        return _timed("roles", "Resident memory by role", labels, series, "stack", "bytes", "B")
    return _timed("cpu", "CPU by role, percent of one core", labels, series, "stack", "count", "%")


def top_processes(view: RunView) -> Chart:
    """Return the processes with the most resident memory, over time."""
    several = len({sample.host for sample in view.samples}) > 1
    times, values = over_time(
        view.samples,
        "rss_bytes",
        lambda sample: f"{sample.pid} {sample.role}{f' {sample.host}' if several else ''}",
    )
    names = sorted(values, key=lambda name: -max(value or 0 for value in values[name]))[:_LINES]
    largest = [max(values[name][number] or 0 for name in names) for number in range(len(times))]
    numbers = thinned(range(len(times)), largest.__getitem__, _POINTS)
    labels = _labels(
        [times[number] for number in numbers], view.watched.start_ms if view.watched else 0
    )
    series = {name: [values[name][number] for number in numbers] for name in names}
    return _timed(
        "top_processes",
        "Resident memory of the largest processes",
        labels,
        series,
        "line",
        "bytes",
        "B",
    )


#: The columns of executors, and what each has in them.
_EXECUTORS: Final[Mapping[Column, Callable[[ExecutorEntry], object]]] = {
    Column("executor", "Executor"): lambda entry: entry.executor,
    Column("host", "Host"): lambda entry: entry.host,
    Column("cores", "Cores", "count"): lambda entry: entry.cores,
    Column("tasks", "Tasks", "count"): lambda entry: entry.totals.tasks,
    Column("failed", "Failed", "count"): lambda entry: entry.totals.failed_tasks,
    Column("gc_share", "GC", "share", _OF_TASKS): lambda entry: _gc_share(entry.totals),
    Column("heap", "Heap peak", "bytes"): lambda entry: entry.peaks.get("JVMHeapMemory"),
    Column("heap_max", "Heap limit", "bytes"): lambda entry: entry.heap_max_bytes,
    Column("jvm_rss", "JVM resident", "bytes"): lambda entry: entry.peaks.get(_JVM_RSS),
    Column("python_rss", "Python resident", "bytes"): lambda entry: entry.peaks.get(_PYTHON_RSS),
    Column("input_bytes", "Read", "bytes"): lambda entry: entry.totals.input_bytes,
    Column("shuffle", "Shuffle written", "bytes"): lambda entry: entry.totals.shuffle_write_bytes,
    Column("spill", "Spilled", "bytes"): lambda entry: entry.totals.disk_spilled_bytes,
    Column("reason", "Removed"): lambda entry: entry.reason or "",
}


def executors(run: RunMetrics) -> Table:
    """Return a row for each executor."""
    empty = "No executor is known."
    return without_noughts(
        make_table(
            "executors",
            _EXECUTORS,
            run.executors,
            "Executors and driver",
            limit=_SHOWN,
            empty=empty,
        )
    )


def _gc_share(totals: TaskTotals) -> float | None:
    return ratio(totals.gc_ms, totals.run_ms)


def time_components(run: RunMetrics) -> Table:
    """Return what the time of tasks was spent on; CPU of tasks and of all processes apart."""
    total = run.totals.task_ms or run.totals.run_ms
    times = {"all tasks": total}
    times |= {
        label: value for name, label in _TIMES.items() if (value := getattr(run.totals, name))
    }
    times |= {} if run.cpu_ms is None else {"CPU of all processes of this host": run.cpu_ms}
    rows = [(label, round(value / 1000, 1), ratio(value, total)) for label, value in times.items()]
    columns = (
        Column("part", "Part"),
        Column("seconds", "Seconds", "count"),
        Column("share", "Of the time of tasks", "share"),
    )
    return Table("times", columns, rows, "Time components", bars=1)


def stages(run: RunMetrics) -> Table:
    """Return a row for each stage, the longest first, with what it read each second."""

    def seconds(since_ms: int, until_ms: int | None, digits: int) -> float | None:
        return None if until_ms is None else round((until_ms - since_ms) / 1000, digits)

    fields: dict[Column, Callable[[StageEntry], object]] = {
        Column("stage", "Stage"): lambda entry: f"{entry.stage}.{entry.attempt}",
        Column("name", "Name"): lambda entry: entry.name,
        Column("start", "Begin, s", "count"): lambda entry: seconds(
            run.began_ms, entry.submitted_ms, 1
        ),
        Column("seconds", "Seconds", "count"): lambda entry: seconds(0, entry.duration_ms, 2),
        Column("tasks", "Tasks", "count"): lambda entry: entry.totals.tasks or entry.task_count,
        Column("failed", "Failed", "count"): lambda entry: entry.totals.failed_tasks,
        Column("gc_share", "GC", "share", _OF_TASKS): lambda entry: _gc_share(entry.totals),
        Column("input_bytes", "Read", "bytes"): lambda entry: entry.totals.input_bytes,
        Column("throughput", "Read each second", "bytes"): lambda entry: (
            round(entry.totals.input_bytes * 1000 / entry.duration_ms)
            if entry.duration_ms
            else None
        ),
        Column("shuffle_read", "Shuffle read", "bytes"): lambda entry: (
            entry.totals.shuffle_read_bytes
        ),
        Column("shuffle_write", "Shuffle written", "bytes"): lambda entry: (
            entry.totals.shuffle_write_bytes
        ),
        Column("spill", "Spilled", "bytes"): lambda entry: entry.totals.disk_spilled_bytes,
        Column("failure", "Failure"): lambda entry: (entry.failure or "").partition("\n")[0],
    }
    ordered = sorted(run.stages, key=lambda entry: -(entry.duration_ms or 0))
    caption, empty = "Stages, the longest first", "There was no stage."
    return without_noughts(
        make_table("stages", fields, ordered, caption, limit=_SHOWN, bars=3, empty=empty)
    )


def stage_timeline(run: RunMetrics) -> Chart:
    """Return which stages ran when: in each slice of time one for each stage that ran in it."""
    timed = [entry for entry in run.stages if entry.duration_ms is not None]
    if not timed:
        return _timed("timeline", "Stages over time", [], {}, "stack", "count")
    first = min(entry.submitted_ms or 0 for entry in timed)
    last = max(entry.completed_ms or 0 for entry in timed)
    width = max(1, -(-(last - first + 1) // _SLICES))
    slices = [first + width * number for number in range((last - first) // width + 1)]
    named = sorted(timed, key=lambda entry: -(entry.duration_ms or 0))[:_STAGES]
    series: dict[str, list[float | int | None]] = {}
    for entry in sorted(named, key=lambda entry: entry.submitted_ms or 0):
        series[f"{entry.stage}.{entry.attempt} {entry.name}"[:60]] = [
            int(_runs_in(entry, at, width)) for at in slices
        ]
    unnamed = [entry for entry in timed if entry not in named]
    if unnamed:
        series["others"] = [sum(_runs_in(entry, at, width) for entry in unnamed) for at in slices]
    # Slices of a short run are milliseconds.
    digits = 1 if width >= 100 else 2 if width >= 10 else 3
    labels = [f"{(at - run.began_ms) / 1000:.{digits}f}" for at in slices]
    return _timed("timeline", "Stages that ran, over time", labels, series, "stack", "count")


def _runs_in(entry: StageEntry, at: int, width: int) -> bool:
    return (entry.submitted_ms or 0) < at + width and (entry.completed_ms or 0) >= at


def _most(name: str) -> Callable[[tuple[int, list[ProcessSample]]], float | None]:
    """Return what gives the largest value of a measure in the samples of a process."""
    return lambda entry: max(
        (value for sample in entry[1] if (value := getattr(sample, name)) is not None),
        default=None,
    )


#: The columns of processes, and what each depth and samples of one have in them.
_PROCESSES: Final[Mapping[Column, Callable[[tuple[int, list[ProcessSample]]], object]]] = {
    Column("process", "Process"): lambda entry: (
        f"{'· ' * entry[0]}{entry[1][-1].pid} {entry[1][-1].short_command}"
    ),
    Column("role", "Role"): lambda entry: entry[1][-1].role,
    Column("host", "Host"): lambda entry: entry[1][-1].host,
    Column("container", "Container"): lambda entry: entry[1][-1].container or "",
    Column("rss", "Resident", "bytes"): _most("rss_bytes"),
    Column("pss", "Proportional", "bytes"): _most("pss_bytes"),
    Column("virtual", "Virtual", "bytes"): _most("virtual_bytes"),
    Column("cpu", "CPU s", "count"): _most("cpu_seconds"),
    Column("read", "Read", "bytes"): _most("read_bytes"),
    Column("written", "Written", "bytes"): _most("write_bytes"),
    Column("fds", "Open files", "count"): _most("fds"),
    Column("command", "Command"): lambda entry: next(
        (sample.long_command for sample in entry[1] if sample.long_command), ""
    )[:300],
}


def process_tree(view: RunView) -> Table:
    """Return the processes of the run as a tree, with their peaks."""
    by_process: dict[tuple[str, int, int], list[ProcessSample]] = {}
    for sample in view.samples:
        by_process.setdefault((sample.host, sample.pid, sample.create_ms), []).append(sample)
    ordered = _in_order(list(by_process.values()))
    bar = [column.name for column in _PROCESSES].index("rss")
    caption, empty = "Processes and their peaks", "No process was watched."
    return without_noughts(
        make_table("processes", _PROCESSES, ordered, caption, limit=_SHOWN, bars=bar, empty=empty)
    )


def _in_order(processes: Sequence[list[ProcessSample]]) -> list[tuple[int, list[ProcessSample]]]:
    """Processes with their depth in the tree, parents before children."""
    pids = {(samples[0].host, samples[0].pid) for samples in processes}
    children: dict[tuple[str, int] | None, list[list[ProcessSample]]] = {}
    for samples in processes:
        parent = (samples[0].host, samples[0].ppid)
        children.setdefault(
            parent if parent in pids and parent[1] != samples[0].pid else None, []
        ).append(samples)
    result: list[tuple[int, list[ProcessSample]]] = []
    queue = [(0, samples) for samples in reversed(children.pop(None, []))]
    while queue:
        depth, samples = queue.pop()
        result.append((depth, samples))
        queue += [
            (depth + 1, entry)
            for entry in reversed(children.pop((samples[0].host, samples[0].pid), []))
        ]
    # A number that was used twice can make a circle: what is in one stands at the end.
    return result + [(0, samples) for orphans in children.values() for samples in orphans]


def _name(entry: ExecutorEntry) -> str:
    return (
        entry.executor if entry.executor in ("driver", "workers") else f"executor {entry.executor}"
    )


def _labels(times_ms: Sequence[int], began_ms: int) -> list[str]:
    return [f"{(time - began_ms) / 1000:.0f}" for time in times_ms]


def _timed(
    name: str,
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | int | None]],
    kind: Literal["line", "stack"],
    column_kind: Kind,
    unit: str = "",
) -> Chart:
    columns = [Column("seconds", _X), *(Column(entry, entry, column_kind) for entry in series)]
    rows = [
        (label, *(values[number] for values in series.values()))
        for number, label in enumerate(labels)
    ]
    table = Table(name, columns, rows, title, limit=_SHOWN)
    return Chart(
        name,
        title,
        kind,
        list(labels),
        dict(series),
        unit,
        _X,
        _UNITS.get(unit, title),
        table=table,
    )
