"""What the steps of a watched suite used at most, by role; comparisons between releases
and along input sizes; and the pages Results, Trend and Hosts, each one HTML file
without scripts.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from markupsafe import Markup

from cmsspark.apps.monitor.processes.collector import with_one_clock
from cmsspark.apps.monitor.processes.sampler import ROLES
from cmsspark.apps.monitor.suites.suite import ALL, MEASURES, Limit, size_text
from cmsspark.base import dates
from cmsspark.base.config_files import nearest
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.pages.charts import Line, plot, thinned
from cmsspark.pages.layout import document, section, table
from cmsspark.pages.svg import WIDE, Axis, Chart, text
from cmsspark.store.process_samples import (
    DONE,
    LogEntry,
    ProcessDatabase,
    ProcessSample,
    WatchedRun,
)

#: Headings of the maxima of a run.
MAXIMA: Final = (
    *("step", "role", "processes", "CPU % max"),
    *("virtual max", "RSS max", "PSS max"),
)
_MARK: Final = re.compile(r"(begin|end) ([\w.\-]+)(?: exit (-?\d+))?")


class Maxima(msgspec.Struct, frozen=True):
    """The largest sums over the processes of a role on one host at one time, in a step;
    ``processes``: at most so many.

    CPU in percent of one core; memory in bytes, shared pages counted in each process.
    """

    cpu_percent: float = 0.0
    virtual_bytes: int = 0
    rss_bytes: int = 0
    pss_bytes: int | None = None
    processes: int = 0
    #: At so many times.
    ticks: int = 0


class StepTime(msgspec.Struct, frozen=True):
    """When a step ran, UTC ms; ``end_ms`` is None where it did not end."""

    name: str
    begin_ms: int
    end_ms: int | None = None
    exit_code: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return None if self.end_ms is None else (self.end_ms - self.begin_ms) / 1000


class SuiteResult(msgspec.Struct, frozen=True):
    """A run of a suite: the times of its steps, and the maxima by (step, role), where
    ``all`` is every role.
    """

    run: WatchedRun
    #: A step that is repeated stands here as often.
    steps: list[StepTime]
    maxima: dict[tuple[str, str], Maxima] = msgspec.field(default_factory=dict)
    #: Of steps that are repeated, the maxima of each time.
    repeats: dict[tuple[str, str], list[Maxima]] = msgspec.field(default_factory=dict)
    #: What was found in the measured runs of its steps.
    findings: list[str] = msgspec.field(default_factory=list)

    @property
    def maxima_rows(self) -> list[tuple[object, ...]]:
        """The maxima for people, a row for each step and role: ``MAXIMA`` are its headings."""
        return [
            (
                *(step, role, maxima.processes, f"{maxima.cpu_percent:,.0f}"),
                *(volume(maxima.virtual_bytes), volume(maxima.rss_bytes)),
                volume(maxima.pss_bytes),
            )
            for (step, role), maxima in self.maxima.items()
        ]

    def seconds(self, step: str) -> float | None:
        """Return how long a step took; of one that is repeated the median."""
        values = self.values(step, ALL, "seconds")
        return statistics.median(values) if values else None

    def values(self, step: str, role: str, measure: str) -> list[float]:
        """Return a measure of a step and role, one value for each time that the step ran."""
        if measure == "seconds":
            return [
                time.seconds
                for time in self.steps
                if time.name == step and time.seconds is not None
            ]
        maxima = self.maxima.get((step, role))
        every = self.repeats.get((step, role)) or ([maxima] if maxima is not None else [])
        return [float(getattr(time, measure)) for time in every]


def step_times(log: Iterable[LogEntry]) -> list[StepTime]:
    """Return the steps of a run from the marks in its log, each as often as it ran."""
    steps: list[StepTime] = []
    for entry in log:
        match = _MARK.fullmatch(entry.message) if entry.type == "mark" else None
        if match is None:
            continue
        name = match[2]
        if match[1] == "begin":
            steps.append(StepTime(name, entry.time_ms))
        elif steps and steps[-1].name == name and steps[-1].end_ms is None:
            code = None if match[3] is None else int(match[3])
            steps[-1] = StepTime(name, steps[-1].begin_ms, entry.time_ms, code)
    return steps


def compute_maxima(
    samples: Iterable[ProcessSample], steps: Sequence[StepTime]
) -> dict[tuple[str, str], Maxima]:
    """Maxima by (step, role), in the order of the steps and roles."""
    ticks: dict[tuple[str, str, str, int], list[ProcessSample]] = defaultdict(list)
    for sample in samples:
        for step in steps:
            if step.begin_ms <= sample.time_ms and (
                step.end_ms is None or sample.time_ms <= step.end_ms
            ):
                ticks[step.name, sample.role, sample.host, sample.time_ms].append(sample)
                ticks[step.name, ALL, sample.host, sample.time_ms].append(sample)
    maxima: dict[tuple[str, str], Maxima] = {}
    for (step_name, role, _, _), rows in ticks.items():
        before = maxima.get((step_name, role), Maxima())
        pss = [row.pss_bytes for row in rows if row.pss_bytes is not None]
        # A sum of some of the processes would be no sum.
        total = sum(pss) if len(pss) == len(rows) else None
        maxima[step_name, role] = Maxima(
            round(max(before.cpu_percent, sum(row.cpu_percent or 0 for row in rows)), 1),
            max(before.virtual_bytes, sum(row.virtual_bytes or 0 for row in rows)),
            max(before.rss_bytes, sum(row.rss_bytes or 0 for row in rows)),
            total if before.pss_bytes is None else max(before.pss_bytes, total or 0),
            max(before.processes, len(rows)),
            before.ticks + 1,
        )
    order = dict.fromkeys((step.name, role) for step in steps for role in (ALL, *ROLES))
    return {key: maxima[key] for key in order if key in maxima}


def load_result(database: ProcessDatabase, run: WatchedRun) -> SuiteResult:
    """Return the result of a stored run of a suite."""
    log = database.log(run.run)
    steps = step_times(log)
    samples = with_one_clock(database.samples(run.run), log)
    names = [step.name for step in steps]
    repeats: dict[tuple[str, str], list[Maxima]] = {}
    for step in steps:
        if names.count(step.name) > 1:
            for key, maxima in compute_maxima(samples, [step]).items():
                repeats.setdefault(key, []).append(maxima)
    findings = [entry.message for entry in log if entry.type == "finding"]
    return SuiteResult(run, steps, compute_maxima(samples, steps), repeats, findings)


def latest_by_size(
    database: ProcessDatabase, suite: str, release: str | None
) -> dict[float | None, SuiteResult]:
    """Return the latest complete run of a release for each input size; of any release
    where it is None.

    Raises InputMissing (66) for a suite or a release without a complete run.
    """
    every = database.runs(suite=suite)
    if not every:
        raise _no_suite(database, suite)
    runs = [run for run in every if run.status == DONE]
    if release is None and runs:
        release = runs[0].release
    results: dict[float | None, SuiteResult] = {}
    for run in runs:
        if run.release == release and run.input_size not in results:
            results[run.input_size] = load_result(database, run)
    if not results:
        releases = (
            ", ".join(dict.fromkeys(readable(str(run.release), lines=False) for run in runs))
            or "none"
        )
        raise InputMissing(
            f"no run of the suite {suite}"
            + (f", release {release}," if release else "")
            + " is complete",
            found=f"complete runs of releases: {releases}",
            next_step="cmsspark lab perf run SUITE.yaml --release NAME",
        )
    return dict(sorted(results.items(), key=lambda entry: entry[0] or 0))


def _no_suite(database: ProcessDatabase, suite: str) -> InputMissing:
    names = list(dict.fromkeys(run.suite for run in database.runs() if run.suite))
    return InputMissing(
        f"the suite {suite} has not run",
        found=f"runs of other suites: {', '.join(names[:20])}" if names else "no run of a suite",
        next_step=nearest(suite, names) if names else "cmsspark lab perf run SUITE.yaml",
    )


def load_runs(database: ProcessDatabase, suite: str, limit: int) -> list[WatchedRun]:
    """Return the last runs of a suite, the latest first. Raises InputMissing (66) for none."""
    runs = database.runs(suite=suite, limit=limit)
    if not runs:
        raise _no_suite(database, suite)
    return runs


def only_in_one(
    before: Mapping[float | None, SuiteResult], after: Mapping[float | None, SuiteResult]
) -> list[str]:
    """Return a line for each input size, and each step of a common size, that only one
    side has: it is not compared.
    """
    lines = []
    for side, results, opposite in (("BEFORE", before, after), ("AFTER", after, before)):
        lacking = [size for size in results if size not in opposite]
        sizes = ", ".join("none" if size is None else size_text(size) for size in lacking)
        if lacking:
            lines.append(f"only {side} has a run of the input size {sizes}")
        steps = [
            step.name
            for size, result in results.items()
            if size in opposite
            for step in result.steps
            if step.name not in {time.name for time in opposite[size].steps}
        ]
        if steps:
            lines.append(f"only {side} has the step {', '.join(dict.fromkeys(steps))}")
    return lines


def broken_limits(result: SuiteResult, limits: Sequence[Limit]) -> list[str]:
    """Return a line for each limit that the run does not keep, or for which nothing was measured."""
    lines = []
    for limit in limits:
        maxima = result.maxima.get((limit.step, limit.role))
        for name in (*MEASURES, "seconds"):
            most = getattr(limit, name)
            if most is None:
                continue
            value = (
                result.seconds(limit.step) if name == "seconds" else getattr(maxima, name, None)
            )
            where = f"{limit.step}, {limit.role}, {name}"
            if value is None:
                lines.append(f"{where}: nothing was measured; the limit is {most:,.0f}")
            elif value > most:
                lines.append(f"{where}: {value:,.0f} is over the limit of {most:,.0f}")
    return lines


#: Smaller changes are below what samples can tell.
RESOLUTION: Final[Mapping[str, float]] = {
    "seconds": 0.5,
    "rss_bytes": 16_000_000,
    "virtual_bytes": 128_000_000,
    "cpu_percent": 25.0,
}


class Difference(msgspec.Struct, frozen=True):
    """A measure of a step and role in two releases: the median of the times that the step ran.

    ``ratio``: the second to the first; None where that is nothing. ``noise``: by how
    much the measure differs without a reason, the larger spread of repeated steps; None,
    not known, if neither side was repeated.
    """

    size: float | None
    step: str
    role: str
    measure: str
    before: float | None
    after: float | None
    noise: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return the second value to the first."""
        return self.after / self.before if self.before and self.after is not None else None

    def has_grown(self, tolerance: float) -> bool:
        """Return whether the measure grew by more than a share, and by more than noise."""
        return self._change() > 0 and (self.ratio or 0) > 1 + tolerance

    @property
    def has_changed(self) -> bool:
        """Return whether the measure differs by more than noise, which is known."""
        return self.noise is not None and self._change() != 0

    def _change(self) -> float:
        """Return by how much the measure grew; 0 for less than noise, or what samples tell."""
        if self.before is None or self.after is None:
            return 0.0
        change = self.after - self.before
        return change if abs(change) > max(RESOLUTION[self.measure], self.noise or 0.0) else 0.0


def differences(
    before: Mapping[float | None, SuiteResult], after: Mapping[float | None, SuiteResult]
) -> list[Difference]:
    """Return every measure of every step and role of sizes that both have; seconds have
    the role ``all``.
    """
    rows = []
    for size, first in before.items():
        second = after.get(size)
        if second is None:
            continue
        for step in dict.fromkeys(time.name for time in (*first.steps, *second.steps)):
            rows.append(_difference(size, step, ALL, "seconds", first, second))
        for step, role in dict.fromkeys((*first.maxima, *second.maxima)):
            ticks = [
                (result.maxima[step, role].ticks, result.maxima[step, ALL].ticks)
                for result in (first, second)
                if (step, role) in result.maxima and (step, ALL) in result.maxima
            ]
            least, of = _PASSING
            if role != ALL and any(seen < least and every >= of for seen, every in ticks):
                continue
            rows += [_difference(size, step, role, measure, first, second) for measure in MEASURES]
    return rows


def _difference(
    size: float | None, step: str, role: str, measure: str, first: SuiteResult, second: SuiteResult
) -> Difference:
    sides = [result.values(step, role, measure) for result in (first, second)]
    spreads = [max(values) - min(values) for values in sides if len(values) > 1]
    before, after = (statistics.median(values) if values else None for values in sides)
    return Difference(size, step, role, measure, before, after, max(spreads, default=None))


#: A process that was seen at fewer times, in a step of at least so many, passed by: its
#: figures are where a sample met it.
_PASSING: Final = (3, 6)


def change_lines(rows: Sequence[Difference]) -> list[str]:
    """Return a line for each measure that changed by more than noise, the largest share
    first; of roles those of which all together changed.
    """
    changed = sorted(
        (row for row in rows if row.has_changed and row.measure in ("seconds", "rss_bytes")),
        key=lambda row: -abs((row.ratio or 1) - 1),
    )
    lines = []
    for row in changed:
        size = "" if row.size is None else f" of size {size_text(row.size)}"
        before, after = (
            volume(value) if row.measure == "rss_bytes" else f"{value or 0:,.1f} s"
            for value in (row.before, row.after)
        )
        share = f"{(row.ratio or 1) - 1:+.0%}"
        measure_text = "resident" if row.measure == "rss_bytes" else "time"
        lines.append(f"{row.step}{size}, {row.role}: {measure_text} {before} → {after} ({share})")
    return lines


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
            table(MAXIMA, result.maxima_rows, (0, 1)),
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
