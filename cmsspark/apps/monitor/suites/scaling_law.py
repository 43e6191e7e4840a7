"""How the measures of a suite's steps grow with the input size: the simplest law that
fits, and its exponent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cmsspark.apps.monitor.processes.sampler import ROLES
from cmsspark.apps.monitor.suites.results import SuiteResult
from cmsspark.apps.monitor.suites.suite import ALL

#: Law → its function of an array of sizes, the simplest first.
LAWS: Final[dict[str, Callable[[Any], Any]]] = {
    "constant": lambda n: 0 * n,
    "log n": np.log,
    "√n": np.sqrt,
    "n": lambda n: n,
    "n log n": lambda n: n * np.log(n),
    "n²": lambda n: n**2,
    "n³": lambda n: n**3,
}
#: Sizes that a fit needs at least.
LEAST_SIZES: Final = 3
#: A law that leaves this share, or twice what the best one leaves, is good enough:
#: measurements are no more exact.
_NOISE: Final = 0.05
#: A law that leaves more than this share does not predict other sizes.
_CLEAR: Final = 0.25


@dataclass(frozen=True)
class ScalingLaw:
    """``value ≈ base + factor × law(size)``.

    ``error``: what is left, relative, as a root mean square over the degrees of
    freedom; ``exponent``: of a power law.
    """

    law: str
    base: float
    factor: float
    error: float
    exponent: float

    @property
    def is_clear(self) -> bool:
        """Whether the law predicts another size: it leaves little, and the values do
        not fall with the size.
        """
        return self.error <= _CLEAR and not self._falls

    @property
    def _falls(self) -> bool:
        return self.exponent < 0 and self.error > _NOISE

    def __str__(self) -> str:
        text = self.law if self.is_clear else "falls" if self._falls else "no clear law"
        return f"{text} (exponent {round(self.exponent, 2) + 0:.2f}, ±{self.error:.0%})"

    def at(self, size: float) -> float:
        """Return the value that the law gives for a size."""
        return self.base + self.factor * float(LAWS[self.law](size))


def fit(points: Sequence[tuple[float, float]]) -> ScalingLaw | None:
    """Return the law through (size, value) points; None for fewer than three sizes, or
    values that are not positive.

    Neither the base nor the factor is negative.
    """
    usable = [(size, value) for size, value in points if size > 0 and value > 0]
    if len({size for size, _ in usable}) < LEAST_SIZES:
        return None
    sizes, values = np.array(usable, dtype=float).T
    exponent = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    laws = []
    for name, law in LAWS.items():
        # Relative differences count: both columns and the values are divided by the values.
        columns, ones = np.stack([1 / values, law(sizes) / values], axis=1), np.ones(len(values))
        constants = np.linalg.lstsq(columns, ones)[0]
        if constants.min() < 0:
            columns[:, constants.argmin()] = 0
            constants = np.linalg.lstsq(columns, ones)[0]
        # Two constants go through two of three points whatever these are: what is left
        # counts for the third alone.
        degrees = len(values) - (1 if name == "constant" else 2)
        error = float(np.sqrt(np.sum((ones - columns @ constants) ** 2) / degrees))
        laws.append(ScalingLaw(name, float(constants[0]), float(constants[1]), error, exponent))
    tolerance = max(_NOISE, 2 * min(law.error for law in laws))
    return next(law for law in laws if law.error <= tolerance)


@dataclass(frozen=True)
class Scaling:
    """A measure of a step and role by input size: ``resident`` (bytes, the maximum) or
    ``seconds``.

    ``law``: through the points; None for fewer than three sizes.
    """

    step: str
    role: str
    measure: str
    points: list[tuple[float, float]]
    law: ScalingLaw | None

    def as_dict(self) -> dict[str, Any]:
        """Numbers for JSON: ``points`` as [size, value]; ``law`` is null where none is clear."""
        law = self.law
        return {
            "points": [list(point) for point in self.points],
            "law": law.law if law and law.is_clear else None,
            "exponent": law and round(law.exponent, 4),
            "error": law and round(law.error, 4),
        }


def scaling(results: Sequence[SuiteResult]) -> Iterator[Scaling]:
    """Yield every step and role with a value, in the order of steps and roles; seconds
    have the role ``all``.
    """
    # A step that is shorter than the interval has a time, and no samples.
    steps = dict.fromkeys(step.name for result in results for step in result.steps)
    sampled = {key for result in results for key in result.maxima}
    for step in steps:
        for role in (ALL, *(role for role in ROLES if (step, role) in sampled)):
            for measure in ("resident", "seconds") if role == ALL else ("resident",):
                points = []
                for result in results:
                    maxima = result.maxima.get((step, role))
                    value = (
                        result.seconds(step)
                        if measure == "seconds"
                        else maxima and maxima.rss_bytes
                    )
                    if result.run.input_size and value:
                        points.append((result.run.input_size, float(value)))
                if points:
                    yield Scaling(step, role, measure, points, fit(points))
