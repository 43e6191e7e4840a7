"""Differences between two releases of a suite, and which of them are more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cmsspark.apps.monitor.suite_file import ALL
from cmsspark.apps.monitor.suite_results import MEASURES, SuiteResult

#: What differs between two runs of the same program anyway: seconds of its start, memory of its allocator, a sample of
#: the CPU more or less. Repeated steps show more than that.
FLOORS: Final[Mapping[str, float]] = {
    "seconds": 0.5, "rss_bytes": 16_000_000, "virtual_bytes": 128_000_000, "cpu_percent": 25.0,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A measure of a step and role in two releases: the median of the times that the step ran.

    ``ratio``: the second to the first; None where that is nothing. ``noise``: by how much the measure differs without
    a reason, the larger of a floor and of the spreads of both sides.
    """

    size: float | None
    step: str
    role: str
    measure: str
    before: float | None
    after: float | None
    noise: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Return the second value to the first."""
        return self.after / self.before if self.before and self.after is not None else None

    def has_grown(self, tolerance: float) -> bool:
        """Return whether the measure grew by more than a share, and by more than noise."""
        if self.ratio is None or self.before is None or self.after is None:
            return False
        return self.ratio > 1 + tolerance and self.after - self.before > self.noise


def differences(
    before: Mapping[float | None, SuiteResult], after: Mapping[float | None, SuiteResult]
) -> list[Difference]:
    """Return every measure of every step and role of sizes that both have; seconds have the role ``all``."""
    rows = []
    for size, first in before.items():
        second = after.get(size)
        if second is None:
            continue
        for step in dict.fromkeys(one.name for one in (*first.steps, *second.steps)):
            rows.append(_difference(size, step, ALL, "seconds", first, second))
        for step, role in dict.fromkeys((*first.maxima, *second.maxima)):
            rows += [_difference(size, step, role, measure, first, second) for measure in MEASURES]
    return rows


def _difference(
    size: float | None, step: str, role: str, measure: str, first: SuiteResult, second: SuiteResult
) -> Difference:
    sides = [result.values(step, role, measure) for result in (first, second)]
    spreads = [max(values) - min(values) for values in sides if values]
    before, after = (statistics.median(values) if values else None for values in sides)
    return Difference(size, step, role, measure, before, after, max(FLOORS[measure], *spreads, 0.0))
