"""What the steps of a watched suite used at most, by role; comparisons between releases
and along input sizes.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cmsspark.apps.monitor.processes.collector import with_one_clock
from cmsspark.apps.monitor.processes.sampler import ROLES
from cmsspark.apps.monitor.suites.suite import ALL, MEASURES, Limit, size_text
from cmsspark.base.config_files import nearest
from cmsspark.base.errors import InputMissing
from cmsspark.base.text.readable import readable
from cmsspark.base.text.terminal import volume
from cmsspark.store.process_samples import (
    DONE,
    LogEntry,
    ProcessDatabase,
    ProcessSample,
    WatchedRun,
)

_MARK: Final = re.compile(r"(begin|end) ([\w.\-]+)(?: exit (-?\d+))?")


@dataclass(frozen=True)
class Maxima:
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


@dataclass(frozen=True)
class StepTime:
    """When a step ran, UTC ms; ``end_ms`` is None where it did not end."""

    name: str
    begin_ms: int
    end_ms: int | None = None
    exit_code: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return None if self.end_ms is None else (self.end_ms - self.begin_ms) / 1000


@dataclass(frozen=True)
class SuiteResult:
    """A run of a suite: the times of its steps, and the maxima by (step, role), where
    ``all`` is every role.
    """

    run: WatchedRun
    #: A step that is repeated stands here as often.
    steps: list[StepTime]
    maxima: dict[tuple[str, str], Maxima] = field(default_factory=dict)
    #: Of steps that are repeated, the maxima of each time.
    repeats: dict[tuple[str, str], list[Maxima]] = field(default_factory=dict)
    #: What was found in the measured runs of its steps.
    findings: list[str] = field(default_factory=list)

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


@dataclass(frozen=True)
class Difference:
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
