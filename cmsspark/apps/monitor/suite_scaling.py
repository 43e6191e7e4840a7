"""How the measures of a suite's steps grow with the input size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cmsspark.apps.monitor.growth import Growth, fit
from cmsspark.apps.monitor.processes_roles import ROLES
from cmsspark.apps.monitor.suite_file import ALL
from cmsspark.apps.monitor.suite_results import SuiteResult


@dataclass(frozen=True)
class Scaling:
    """A measure of a step and role by input size: ``resident`` (bytes, the maximum) or ``seconds``.

    ``growth``: the law through the points; None for fewer than three sizes.
    """

    step: str
    role: str
    measure: str
    points: list[tuple[float, float]]
    growth: Growth | None

    def as_dict(self) -> dict[str, Any]:
        """Numbers for JSON: ``points`` as [size, value]; ``law`` is null where none is clear."""
        growth = self.growth
        return {
            "points": [list(point) for point in self.points],
            "law": growth.law if growth and growth.is_clear else None,
            "exponent": growth and round(growth.exponent, 4),
            "error": growth and round(growth.error, 4),
        }


def scaling(results: Sequence[SuiteResult]) -> Iterator[Scaling]:
    """Yield every step and role with a value, in the order of steps and roles; seconds have the role ``all``."""
    # A step that is shorter than the interval has a time, and no samples.
    steps = dict.fromkeys(step.name for result in results for step in result.steps)
    sampled = {key for result in results for key in result.maxima}
    for step in steps:
        for role in (ALL, *(role for role in ROLES if (step, role) in sampled)):
            for measure in ("resident", "seconds") if role == ALL else ("resident",):
                points = []
                for result in results:
                    maxima = result.maxima.get((step, role))
                    value = result.seconds(step) if measure == "seconds" else maxima and maxima.rss_bytes
                    if result.run.input_size and value:
                        points.append((result.run.input_size, float(value)))
                if points:
                    yield Scaling(step, role, measure, points, fit(points))
