"""Pages of suites, each one HTML file without scripts: Results, Trend, Hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from markupsafe import Markup

from cmsspark.apps.monitor.processes.sampler import ROLES
from cmsspark.apps.monitor.suites.results import SuiteResult
from cmsspark.apps.monitor.suites.suite import ALL, size_text
from cmsspark.base import dates
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.pages.charts import Line, plot, thinned
from cmsspark.pages.layout import document, section, table
from cmsspark.pages.svg import WIDE, Axis, Chart, text
from cmsspark.store.process_samples import ProcessSample

#: Processes that the page of results draws.
_TOP: Final = 10
_NOTHING: Final = "–"


def results_page(
    result: SuiteResult, samples: Sequence[ProcessSample], other_sizes: Sequence[SuiteResult] = ()
) -> str:
    """Return a run of a suite: maxima by step and role, memory and CPU over time, the
    largest processes.

    ``other_sizes``: the runs of the same release with other input sizes.
    """
    run = result.run
    start, end = run.start_ms, run.end_ms or run.start_ms
    bands = [
        (step.name, (step.begin_ms - start) / 1000, ((step.end_ms or end) - start) / 1000)
        for step in result.steps
    ]
    steps = [
        (step.name, None if step.seconds is None else f"{step.seconds:,.1f}", step.exit_code)
        for step in result.steps
    ]
    maxima_rows = [
        (
            step,
            role,
            maxima.processes,
            f"{maxima.cpu_percent:,.0f}",
            volume(maxima.virtual_bytes),
            volume(maxima.rss_bytes),
            volume(maxima.pss_bytes),
        )
        for (step, role), maxima in result.maxima.items()
    ]
    size = f", size {size_text(run.input_size)}" if run.input_size else ""
    began = dates.to_second(run.start_ms)
    about = f"run {run.run}, release {run.release}{size}, {run.status}, {began} UTC on {run.host}"
    cpu = _by_role(samples, "cpu_percent", run.start_ms)
    memory = _by_role(samples, "rss_bytes", run.start_ms)
    top = _lines(_top(samples, run.start_ms), "Resident memory", volume, bands=bands)
    parts = [
        section("Steps", table(("step", "seconds", "exit code"), steps)),
        *(
            [section("Findings", table((), [(line,) for line in result.findings], (0,)))]
            if result.findings
            else []
        ),
        section(
            "Maximum by step and role",
            table(
                ("step", "role", "processes", "CPU %", "virtual", "resident", "proportional"),
                maxima_rows,
                (0, 1),
            ),
            about="Sums over processes at one time on one host.",
        ),
        section(
            "Resident memory by role",
            _lines(memory, "Resident memory by role", volume, bands=bands),
        ),
        section(
            "CPU by role",
            _lines(cpu, "CPU by role", lambda value: f"{round(value, 1):g} %", bands=bands),
            about="Percent of one core.",
        ),
        section("Largest processes", top, about="The processes with the most resident memory."),
    ]
    if len(other_sizes) > 1:
        parts.append(_by_size(other_sizes))
    return document(f"Results of {run.suite}", parts, about)


def trend_page(suite: str, results: Sequence[SuiteResult]) -> str:
    """Return a trend over all runs of a suite, the oldest first: resident memory and
    time of each step, by input size: runs of other sizes are no trend.
    """
    steps = dict.fromkeys(step.name for result in results for step in result.steps)
    memory: dict[str, list[tuple[float, float]]] = defaultdict(list)
    seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows = []
    for index, result in enumerate(results, 1):
        run = result.run
        for step in steps:
            maxima = result.maxima.get((step, ALL))
            name = step if run.input_size is None else f"{step}, {size_text(run.input_size)}"
            memory[name] += (
                [(index, float(maxima.rss_bytes))] if maxima and maxima.rss_bytes else []
            )
            seconds[name] += [(index, value)] if (value := result.seconds(step)) else []
        worst = max(
            (maxima.rss_bytes for (_, role), maxima in result.maxima.items() if role == ALL),
            default=None,
        )
        took = None if run.end_ms is None else f"{(run.end_ms - run.start_ms) / 1000:,.1f}"
        size = None if run.input_size is None else size_text(run.input_size)
        rows.append(
            (
                index,
                run.run,
                run.release,
                size,
                dates.to_second(run.start_ms),
                took,
                volume(worst),
                run.status,
            )
        )
    heads = ("", "run", "release", "size", "started (UTC)", "seconds", "resident", "status")
    marks = [(float(index), f"run {index}") for index in range(1, len(results) + 1)]
    parts = [
        section(
            "Resident memory at most",
            _lines(memory, "Resident memory at most", volume, marks=marks),
        ),
        section("Seconds", _lines(seconds, "Seconds", _seconds, marks=marks)),
        section("Runs", table(heads, rows, (1, 2, 4, 7))),
    ]
    return document(f"Trend of {suite}", parts, pluralize(len(results), "run"))


def hosts_page(
    samples: Iterable[ProcessSample], now_ms: int, this_host: Sequence[tuple[str, str]]
) -> str:
    """Return the nodes as they were seen last: processes, memory and CPU by role;
    ``this_host``: facts on this one.
    """
    latest: dict[str, list[ProcessSample]] = defaultdict(list)
    for sample in samples:
        if latest[sample.host] and sample.time_ms > latest[sample.host][0].time_ms:
            latest[sample.host].clear()
        if not latest[sample.host] or sample.time_ms == latest[sample.host][0].time_ms:
            latest[sample.host].append(sample)
    rows = []
    for host, processes in sorted(latest.items()):
        age = max(0, now_ms - processes[0].time_ms) / 1000
        for role in ROLES:
            members = [process for process in processes if process.role == role]
            if members:
                containers = len({process.container for process in members if process.container})
                sums = (
                    f"{sum(process.cpu_percent or 0 for process in members):,.0f}",
                    volume(sum(process.rss_bytes or 0 for process in members)),
                    volume(sum(process.virtual_bytes or 0 for process in members)),
                    f"{sum(process.fds or 0 for process in members):,}",
                )
                rows.append((host, f"{age:,.0f} s ago", role, len(members), containers, *sums))
    heads = (
        *("host", "seen", "role", "processes", "containers", "CPU %", "resident", "virtual"),
        *("open files",),
    )
    parts = [
        section("This host", table((), this_host, (0, 1))),
        section("Nodes", table(heads, rows, (0, 1, 2)), about="The last sample of each host."),
    ]
    return document(
        "Hosts", parts, f"{pluralize(len(latest), 'host')}, as of {dates.to_second(now_ms)} UTC"
    )


def _lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    about: str,
    number: Callable[[float], str],
    x: Axis | None = None,
    *,
    marks: Sequence[tuple[float, str]] = (),
    bands: Sequence[tuple[str, float, float]] = (),
) -> Chart:
    """Return each series as a line over seconds, sizes or runs."""
    present = {
        name: thinned(points, lambda point: point[1]) for name, points in series.items() if points
    }
    xs = [x for points in present.values() for x, _ in points] + [
        end for _, *ends in bands for end in ends
    ]
    if not xs:
        return Chart(text(0, 20, "Nothing was measured."), 34, f"{about}: nothing", WIDE)
    if x is None:
        x = Axis(min(xs), max(xs), number=lambda value: f"{value:g} s", marks=marks)
    most = {name: max(y for _, y in points) for name, points in present.items()}
    lines = [
        Line(name, points, has_dots=bool(marks) or x.is_log) for name, points in present.items()
    ]
    summary = "; ".join(
        f"{name} at most {number(value)}" for name, value in list(most.items())[:4]
    )
    y = Axis(0, max(most.values(), default=0) or 1, number=number)
    return plot(lines, x, y, about=f"{about}: {summary}", width=WIDE, bands=bands)


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _by_size(results: Sequence[SuiteResult]) -> Markup:
    """Return resident memory and seconds by step and input size, and the curves of the
    first.
    """
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows = []
    for result in results:
        size = result.run.input_size
        for (step, role), maxima in result.maxima.items():
            if role == ALL and size:
                series[step].append((size, float(maxima.rss_bytes)))
                seconds = result.seconds(step)
                took = None if seconds is None else _seconds(seconds)
                rows.append((step, size_text(size), volume(maxima.rss_bytes), took))
    sizes = [x for points in series.values() for x, _ in points] or [1]
    marks = [(size, size_text(size)) for size in sorted(set(sizes))]
    x = Axis(min(sizes), max(sizes), "input size", size_text, is_log=True, marks=marks)
    chart = _lines(series, "Resident memory by size", volume, x)
    heads = ("step", "input size", "resident", "seconds")
    return section("By input size", table(heads, sorted(rows), (0,)), chart)


def _by_role(
    samples: Iterable[ProcessSample], name: str, start_ms: int
) -> dict[str, list[tuple[float, float]]]:
    """Role, and host where there are several → (seconds, sum over its processes)."""
    rows = list(samples)
    several = len({sample.host for sample in rows}) > 1
    sums: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for sample in rows:
        label = f"{sample.role} {sample.host}" if several else sample.role
        sums[label][(sample.time_ms - start_ms) / 1000] += getattr(sample, name) or 0
    order = list(ROLES)
    # Where a role has no process its sum is nothing: a line across would be wrong.
    times = sorted({(sample.time_ms - start_ms) / 1000 for sample in rows})
    return {
        label: [(time, values.get(time, 0.0)) for time in times]
        if not several
        else sorted(values.items())
        for label, values in sorted(
            sums.items(), key=lambda entry: order.index(entry[0].partition(" ")[0])
        )
    }


def _top(samples: Iterable[ProcessSample], start_ms: int) -> dict[str, list[tuple[float, float]]]:
    rows = list(samples)
    several = len({sample.host for sample in rows}) > 1
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in rows:
        name = f"{sample.pid} {sample.role}{f' {sample.host}' if several else ''}"
        points[name].append(((sample.time_ms - start_ms) / 1000, float(sample.rss_bytes or 0)))
    largest = sorted(points, key=lambda name: -max(value for _, value in points[name]))[:_TOP]
    return {name: points[name] for name in largest}
