"""Sizes of caches as people write them, and the size that reaches a target."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from cmsspark.cache import curves
from cmsspark.cache.replay import Simulation
from cmsspark.cache.trace import Trace
from cmsspark.errors import UsageError

_UNITS: Final = "KMGTP"
_SIZE: Final = re.compile(
    r"(?P<number>\d+(\.\d+)?) ?((?P<percent>%)|(?P<unit>[KMGTP]?)(?P<binary>i?)B?)", re.IGNORECASE
)
#: Sizes of a curve, as shares of the footprint.
SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: How close a size found by replays is to the least one: a hundredth.
_TOLERANCE: Final = 0.01


def parse_size(text: str, footprint: int) -> int:
    """Bytes of ``500GB``, ``1.5TB``, ``2TiB``, ``1000`` or ``20%`` of the footprint. Raises UsageError (2)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", next_step="such as 500GB, 1.5TB or 20% of the bytes of all objects")
    number = float(match["number"])
    if match["percent"]:
        size = number / 100 * footprint
    else:
        base = 1024 if match["binary"] else 1000
        unit = match["unit"].upper()
        size = number * base ** (_UNITS.index(unit) + 1) if unit else number
    if size < 1:
        raise UsageError(f"a cache of {text} holds nothing", next_step="give at least one byte")
    return int(size)


def least_capacity(trace: Trace, target: float, policy: str = "lru") -> int | None:
    """The least cache, in bytes, in which the policy misses at most ``target`` of the requested bytes; None where even
    an infinite cache misses more.

    For LRU exact above the largest object. Otherwise found by bisection to a hundredth: the misses of other policies
    need not fall with the size, so a smaller cache may reach the target, too.
    """
    simulation = Simulation(trace)
    requested = trace.requested_bytes
    compulsory = int(simulation.request_sizes[simulation.is_first].sum())
    if compulsory > target * requested:
        return None
    if policy == "lru" and (exact := _least_of_curve(trace, target)) is not None:
        return exact
    low, high = 0, trace.footprint
    while high - low > max(_TOLERANCE * high, 1):
        middle = (low + high) // 2
        if simulation.replay(policy, middle).missed_bytes <= target * requested:
            high = middle
        else:
            low = middle
    return high


def _least_of_curve(trace: Trace, target: float) -> int | None:
    """From stack distances; None where it is smaller than the largest object, as distances are not exact there."""
    distances = curves.lru_distances(trace.objects, trace.sizes)
    sizes = trace.sizes[trace.objects]
    again = distances != curves.FIRST
    order = np.argsort(distances[again], kind="stable")
    ranked = distances[again][order]
    missed = int(sizes.sum()) - np.cumsum(sizes[again][order])
    enough = np.nonzero(missed <= target * int(sizes.sum()))[0]
    if not len(enough) or ranked[enough[0]] < trace.sizes.max():
        return None
    return int(ranked[enough[0]])
