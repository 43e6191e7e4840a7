"""What no policy can beat on a trace: first requests, Belady's MIN for equal sizes, and
a bound for sized objects.
"""

from __future__ import annotations

import numpy as np

from cmsspark.apps.cache.structures import heap_push, heap_remove, heap_update, make_heap
from cmsspark.base.arrays import Flags, Ints, Longs
from cmsspark.base.jit import jit


@jit
def next_requests(objects: Ints, object_count: int) -> Longs:
    """For each request the number of the object's next one; the number of requests
    where there is none.
    """
    following = np.full(object_count, len(objects), np.int64)
    out = np.empty(len(objects), np.int64)
    for i in range(len(objects) - 1, -1, -1):
        out[i] = following[objects[i]]
        following[objects[i]] = i
    return out


@jit
def belady_min(objects: Ints, object_count: int, capacity: int) -> Flags:
    """Flags of Belady's MIN, the optimum for ``capacity`` objects of one size: evicts
    what is needed last.

    What was missed competes, too: it is not kept where it is needed later than all others.
    """
    upcoming = next_requests(objects, object_count)
    hits = np.zeros(len(objects), np.uint8)
    heap, slots, priority, tie = make_heap(object_count)
    stored = 0
    for i in range(len(objects)):
        item = objects[i]
        priority[item] = -float(upcoming[i])
        if slots[item] >= 0:
            hits[i] = 1
            heap_update(heap, slots, priority, tie, item, stored)
            continue
        stored = heap_push(heap, slots, priority, tie, item, stored)
        if stored > capacity:
            stored = heap_remove(heap, slots, priority, tie, heap[0], stored)
    return hits


def least_misses(objects: Ints, sizes: Longs, capacity: int, *, in_bytes: bool) -> float:
    """Return a lower bound of the misses of any policy, in bytes or in requests
    (PFOO-L, Berger et al. 2018).

    To hit, an object occupies its size from one request to the next. All such intervals
    share capacity times requests; the cheapest for each hit are granted, the last one
    in part.
    """
    upcoming = next_requests(objects, len(sizes))
    size = sizes[objects]
    total = float(size.sum()) if in_bytes else float(len(objects))
    again = np.nonzero((upcoming < len(objects)) & (size <= capacity))[0]
    length = (upcoming[again] - again).astype(np.float64)
    cost = length * size[again]
    gain = size[again].astype(np.float64) if in_bytes else np.ones(len(again))
    order = np.argsort(cost / gain, kind="stable")
    spent = np.cumsum(cost[order])
    room = float(capacity) * len(objects)
    full_count = int(np.searchsorted(spent, room, side="right"))
    granted = float(gain[order[:full_count]].sum())
    if full_count < len(order):
        remaining = room - (spent[full_count - 1] if full_count else 0.0)
        granted += float(gain[order[full_count]]) * remaining / float(cost[order[full_count]])
    return max(total - granted, 0.0)
