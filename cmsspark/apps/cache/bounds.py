"""What no policy can beat on a trace: first requests, Belady's MIN for equal sizes, and a bound for sized objects."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmsspark.apps.cache.heaps import heap_push, heap_remove, heap_update
from cmsspark.apps.cache.jit import jit

Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Hits = np.ndarray[Any, np.dtype[np.uint8]]


@jit
def next_requests(objects: Ints, object_count: int) -> Longs:
    """For each request the number of the object's next one; the number of requests where there is none."""
    following = np.full(object_count, len(objects), np.int64)
    out = np.empty(len(objects), np.int64)
    for i in range(len(objects) - 1, -1, -1):
        out[i] = following[objects[i]]
        following[objects[i]] = i
    return out


@jit
def first_requests(objects: Ints, object_count: int) -> Hits:
    """1 where an object is requested for the first time: even an infinite cache misses it."""
    seen = np.zeros(object_count, np.uint8)
    out = np.zeros(len(objects), np.uint8)
    for i in range(len(objects)):
        if not seen[objects[i]]:
            seen[objects[i]] = 1
            out[i] = 1
    return out


@jit
def belady_min(objects: Ints, object_count: int, slots: int) -> Hits:
    """Hits of Belady's MIN, the optimum for ``slots`` objects of one size: evicts what is needed last.

    What was missed competes, too: it is not kept where it is needed later than all others.
    """
    upcoming = next_requests(objects, object_count)
    hits = np.zeros(len(objects), np.uint8)
    heap = np.empty(object_count, np.int32)
    where = np.full(object_count, -1, np.int32)
    priority = np.zeros(object_count, np.float64)
    tie = np.zeros(object_count, np.int64)
    held = 0
    for i in range(len(objects)):
        item = objects[i]
        priority[item] = -float(upcoming[i])
        if where[item] >= 0:
            hits[i] = 1
            heap_update(heap, where, priority, tie, item, held)
            continue
        held = heap_push(heap, where, priority, tie, item, held)
        if held > slots:
            held = heap_remove(heap, where, priority, tie, heap[0], held)
    return hits


def least_misses(objects: Ints, sizes: Longs, capacity: int, *, in_bytes: bool) -> float:
    """Return a lower bound of the misses of any policy, in bytes or in requests (PFOO-L, Berger et al. 2018).

    To hit, an object occupies its size from one request to the next. All such intervals share capacity times requests;
    the cheapest for each hit are granted, the last one in part.
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
    whole = int(np.searchsorted(spent, room, side="right"))
    granted = float(gain[order[:whole]].sum())
    if whole < len(order):
        left = room - (spent[whole - 1] if whole else 0.0)
        granted += float(gain[order[whole]]) * left / float(cost[order[whole]])
    return max(total - granted, 0.0)
