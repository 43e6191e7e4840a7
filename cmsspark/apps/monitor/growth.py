"""How a measure grows with the input size: the simplest law that fits, with its constants and its exponent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Law → its function, the simplest first.
LAWS: Final[dict[str, Callable[[float], float]]] = {
    "constant": lambda n: 0.0,
    "log n": lambda n: math.log(n),
    "√n": lambda n: math.sqrt(n),
    "n": lambda n: n,
    "n log n": lambda n: n * math.log(n) if n > 1 else 0.0,
    "n²": lambda n: n**2,
    "n³": lambda n: n**3,
}
#: Sizes that a fit needs at least.
LEAST_SIZES: Final = 3
#: A measurement is not more exact than this share of it: a law that leaves less is good enough.
_NOISE: Final = 0.05
#: With more points than two laws need these show their noise themselves, down to this share.
_LEAST_NOISE: Final = 0.01
#: Degrees of freedom → how much more a simpler law may leave than the best one: roots of Fisher's F at 5 %. With one
#: degree, as of three sizes, luck alone makes a law fit.
_MORE: Final = {2: 4.4, 3: 3.1, 4: 2.5, 5: 2.3, 6: 2.1}
#: A law that leaves more than this share does not predict other sizes.
_CLEAR: Final = 0.25


@dataclass(frozen=True)
class Growth:
    """``value ≈ base + factor × law(size)``. ``exponent``: of a power law through all points; ``error``: what is left,
    relative, as a root mean square over the degrees of freedom."""

    law: str
    base: float
    factor: float
    error: float
    exponent: float

    @property
    def falls(self) -> bool:
        """Whether the values become smaller with the size: no law of growth fits."""
        return self.exponent < 0 and self.error > _NOISE

    @property
    def is_clear(self) -> bool:
        """Whether the law leaves little enough to predict another size."""
        return self.error <= _CLEAR and not self.falls

    def __str__(self) -> str:
        figures = f"(exponent {round(self.exponent, 2) + 0:.2f}, ±{self.error:.0%})"
        if self.falls:
            return f"falls {figures}"
        return f"{self.law} {figures}" if self.is_clear else f"no clear law {figures}"

    def at(self, size: float) -> float:
        """Return the value that the law gives for a size."""
        return self.base + self.factor * LAWS[self.law](size)


def fit(points: Sequence[tuple[float, float]]) -> Growth | None:
    """Return the law through (size, value) points; None for fewer than three sizes, or values that are not positive.

    Neither the base nor the factor is negative. The simplest law is taken that does not leave clearly more than the
    best one; of three sizes one that leaves 5 %, or twice what the best one leaves.
    """
    known = [(size, value) for size, value in points if size > 0 and value > 0]
    if len({size for size, _ in known}) < LEAST_SIZES:
        return None
    sizes, values = np.array([size for size, _ in known]), np.array([value for _, value in known])
    exponent = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
    found = []
    for name, law in LAWS.items():
        column = np.array([law(float(size)) for size in sizes])
        base, factor = _constants(column, values)
        left = (values - base - factor * column) / values
        free = 1 if name == "constant" else 2
        # Two constants go through two of three points whatever these are: what is left counts for the third alone.
        error = float(np.sqrt(np.sum(left**2) / (len(known) - free)))
        found.append(Growth(name, base, factor, error, exponent))
    least = min(growth.error for growth in found)
    free = len(known) - 2
    tolerance = max(_LEAST_NOISE, min(_MORE.get(free, 2.0) * least, max(_NOISE, 2 * least)))
    if free < min(_MORE):
        tolerance = max(_NOISE, 2 * least)
    return next(growth for growth in found if growth.error <= tolerance)


def _constants(law: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Base and factor, neither negative, with the least sum of squares of relative differences."""
    weights = 1 / values
    ones, target = weights, np.ones(len(values))
    column = law * weights
    candidates = [(float(ones @ target / (ones @ ones)), 0.0)]
    if column @ column > 0:
        candidates.append((0.0, float(column @ target / (column @ column))))
        both = np.linalg.lstsq(np.stack([ones, column], axis=1), target, rcond=None)[0]
        candidates.append((float(both[0]), float(both[1])))
    allowed = [(base, factor) for base, factor in candidates if base >= 0 and factor >= 0]
    return min(allowed, key=lambda one: float(np.sum((target - one[0] * ones - one[1] * column) ** 2)))
