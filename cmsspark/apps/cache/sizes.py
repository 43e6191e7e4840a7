"""Sizes of caches: as people write them, and the least one that reaches a target."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

import numpy as np

from cmsspark.apps.cache.replay import Simulation, check_policies
from cmsspark.apps.cache.trace import MOST_BYTES, Trace
from cmsspark.base.arrays import Ints, Longs, jit
from cmsspark.base.errors import UsageError
from cmsspark.base.text.sizes import parse_bytes

_SHARE: Final = re.compile(r"\d+(\.\d+)? ?%")
#: Sizes of a curve, as shares of the footprint.
SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: How close a size found by replays is to the least one: a hundredth.
_TOLERANCE: Final = 0.01
#: Requests times sizes of objects up to which each size is looked at.
_MOST_STEPS: Final = 20_000_000
#: No distance: the object's first request.
_FIRST = -1


def parse_size(text: str, footprint: int) -> int:
    """Return bytes of ``500GB``, ``1.5TB``, ``2TiB``, ``1000`` or ``20%`` of the
    footprint. Raises UsageError (2).
    """
    stripped = text.strip()
    if stripped.endswith("%") and _SHARE.fullmatch(stripped):
        number = float(stripped.rstrip("% "))
        # A small share of a few bytes is a byte.
        size = max(number / 100 * footprint, float(number > 0))
    else:
        size = parse_bytes(text, "such as 500GB, 1.5TB or 20% of the bytes of all objects")
    if size < 1:
        raise UsageError(f"a cache of {text} holds nothing", next_step="give at least one byte")
    if size > MOST_BYTES:
        raise UsageError(
            f"a cache of {text} is beyond 64 bits", next_step="give at most 2000000000 GB"
        )
    return int(size)


def least_capacity(trace: Trace, target: float, policy: str = "lru") -> int | None:
    """Return the least cache, in bytes, in which the policy misses at most ``target``
    of the requested bytes; None where even an infinite cache misses more.

    For LRU exact where the objects have few sizes, else among caches that hold the
    largest object. Otherwise found by bisection to a hundredth: the misses of other
    policies need not fall with the size, so a smaller cache may reach the target, too.
    Raises UsageError (2) for another policy.
    """
    check_policies([policy])
    simulation = Simulation(trace)
    # 0.29 of 100 bytes are 29.
    allowed = math.floor(Fraction(str(target)) * trace.requested_bytes)
    if simulation.replay("lru", 1).compulsory_bytes > allowed:
        return None
    if trace.requested_bytes <= allowed:
        return 1
    is_plain_lru = policy == "lru" and trace.reads is None
    if is_plain_lru and (exact := _least_of_curves(trace, allowed)) is not None:
        return exact
    low, high = 0, trace.footprint
    while simulation.replay(policy, high).missed_bytes > allowed:
        # S3-FIFO does not admit what is larger than a tenth of the cache.
        low, high = high, 2 * high
        if high > MOST_BYTES:
            return None
    while high - low > max(_TOLERANCE * high, 1):
        middle = (low + high) // 2
        if simulation.replay(policy, middle).missed_bytes <= allowed:
            high = middle
        else:
            low = middle
    return high


def _least_of_curves(trace: Trace, allowed: int) -> int | None:
    """From stack distances of the objects up to a size, as larger ones pass by the
    cache: of each size where there are few, else of the largest one only. None where no
    such cache misses so few bytes.
    """
    sizes = trace.sizes[trace.objects]
    most, needed_bytes = int(trace.sizes.max()), int(sizes.sum()) - allowed
    steps = np.unique(trace.sizes)
    if len(steps) * len(sizes) > _MOST_STEPS:
        steps = steps[-1:]
    for number, step in enumerate(steps.tolist()):
        is_small = sizes <= step
        small_sizes, objects = sizes[is_small], trace.objects[is_small]
        distances = lru_distances(objects, trace.sizes)
        again = distances != _FIRST
        order = np.argsort(distances[again], kind="stable")
        enough = np.nonzero(np.cumsum(small_sizes[again][order]) >= needed_bytes)[0]
        if len(enough):
            least = max(int(distances[again][order][enough[0]]), int(step))
            # Above the next size there are more objects in the cache.
            if step == most or least < int(steps[number + 1]):
                return least
    return None


@jit
def lru_distances(objects: Ints, sizes: Longs) -> Longs:
    """For each request the least cache, in bytes, in which LRU has its object: the
    object and all used since; −1 at first requests. Exact where no object is larger
    than the cache.
    """
    count = len(objects)
    tree = np.zeros(count + 1, np.int64)
    latest = np.full(len(sizes), -1, np.int64)
    out = np.empty(count, np.int64)
    for i in range(count):
        item = objects[i]
        size = sizes[item]
        before = latest[item]
        if before < 0:
            out[i] = -1
        else:
            distance = size
            node = i
            while node > 0:
                distance += tree[node]
                node &= node - 1
            node = before + 1
            while node > 0:
                distance -= tree[node]
                node &= node - 1
            out[i] = distance
            node = before + 1
            while node <= count:
                tree[node] -= size
                node += node & -node
        node = i + 1
        while node <= count:
            tree[node] += size
            node += node & -node
        latest[item] = i
    return out
