"""Misses of LRU for all sizes of a cache at once, from stack distances; of a sample where the trace is long."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmsspark.apps.cache.policies import lru
from cmsspark.apps.cache.trace import Trace
from cmsspark.base.arrays import Ints, Longs
from cmsspark.base.jit import jit

#: No distance: the object's first request.
FIRST = -1


@jit
def lru_distances(objects: Ints, sizes: Longs) -> Longs:
    """For each request the least cache, in bytes, in which LRU has its object: the object and all used since; −1 at
    first requests. Exact where no object is larger than the cache.
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


def lru_misses(trace: Trace, capacities: Longs) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (requests missed, bytes missed) by LRU for each capacity, exact: int64 each, as ``capacities``.

    Below the largest object, where larger objects pass by the cache, each capacity is replayed.
    """
    sizes = trace.sizes[trace.objects]
    distances = lru_distances(trace.objects, trace.sizes)
    again = distances != FIRST
    order = np.argsort(distances[again], kind="stable")
    ranked = distances[again][order]
    total = np.concatenate([[0], np.cumsum(sizes[again][order])])
    hits = np.searchsorted(ranked, capacities, side="right")
    missed = len(trace.objects) - hits
    missed_bytes = int(sizes.sum()) - total[hits]
    largest = int(trace.sizes.max(initial=0))
    for index in np.nonzero(np.asarray(capacities) < largest)[0]:
        is_miss = lru(trace.objects, trace.sizes, int(capacities[index])) == 0
        missed[index] = int(is_miss.sum())
        missed_bytes[index] = int(sizes[is_miss].sum())
    return missed, missed_bytes
