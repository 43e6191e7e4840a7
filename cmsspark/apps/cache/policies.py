"""Eviction policies. Each replays a trace and says which requests were hits.

All take (objects: int32, one for each request; sizes: int64 bytes, one for each object;
capacity: bytes) and return uint8, 1 where a request was a hit. The cache is cold at the
start. A missed object is admitted; objects larger than the cache are not. Sizes are
positive and do not change in a trace.
"""

from __future__ import annotations

import numpy as np

from cmsspark.apps.cache.heaps import heap_push, heap_remove, heap_update, make_heap
from cmsspark.apps.cache.queues import admit, evict, make_lists, push, unlink
from cmsspark.base.arrays import Flags, Ints, Longs
from cmsspark.base.jit import jit


@jit
def fifo(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """First in, first out."""
    hits = np.zeros(len(objects), np.uint8)
    is_cached = np.zeros(len(sizes), np.uint8)
    queue = np.empty(len(sizes) + 1, np.int32)
    slots = len(queue)
    first = last = 0
    used = 0
    for i in range(len(objects)):
        item = objects[i]
        if is_cached[item]:
            hits[i] = 1
            continue
        size = sizes[item]
        if size > capacity:
            continue
        while used + size > capacity:
            victim = queue[first]
            first = first + 1 if first + 1 < slots else 0
            is_cached[victim] = 0
            used -= sizes[victim]
        queue[last] = item
        last = last + 1 if last + 1 < slots else 0
        is_cached[item] = 1
        used += size
    return hits


@jit
def lru(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """Evict what was used least recently."""
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    following, preceding = make_lists(count, 1)
    is_cached = np.zeros(count, np.uint8)
    used = 0
    for i in range(len(objects)):
        item = objects[i]
        if is_cached[item]:
            hits[i] = 1
            if following[count] != item:
                unlink(following, preceding, item)
                push(following, preceding, count, item)
            continue
        size = sizes[item]
        if size > capacity:
            continue
        while used + size > capacity:
            used -= evict(following, preceding, is_cached, sizes, preceding[count])
        admit(following, preceding, is_cached, count, item, 1)
        used += size
    return hits


@jit
def sieve(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """SIEVE (NSDI 2024): a FIFO whose hand passes over what was used since it came by,
    and stays where it evicts.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    following, preceding = make_lists(count, 1)
    is_cached = np.zeros(count, np.uint8)
    is_visited = np.zeros(count, np.uint8)
    hand = count
    used = 0
    for i in range(len(objects)):
        item = objects[i]
        if is_cached[item]:
            hits[i] = 1
            is_visited[item] = 1
            continue
        size = sizes[item]
        if size > capacity:
            continue
        while used + size > capacity:
            # From old to new; the end of the list stands for "start at the oldest".
            victim = preceding[count] if hand == count else hand
            while is_visited[victim]:
                is_visited[victim] = 0
                victim = preceding[victim]
                if victim == count:
                    victim = preceding[count]
            hand = preceding[victim]
            used -= evict(following, preceding, is_cached, sizes, victim)
        admit(following, preceding, is_cached, count, item, 1)
        used += size
    return hits


@jit
def lfu(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """Evict what was used least often since it was admitted; of equals, what reached
    that number first.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    heap, slots, uses, reached = make_heap(count)
    stored = 0
    used = 0
    for i in range(len(objects)):
        item = objects[i]
        if slots[item] >= 0:
            hits[i] = 1
            uses[item] += 1
            reached[item] = i
            heap_update(heap, slots, uses, reached, item, stored)
            continue
        size = sizes[item]
        if size > capacity:
            continue
        while used + size > capacity:
            victim = heap[0]
            stored = heap_remove(heap, slots, uses, reached, victim, stored)
            used -= sizes[victim]
        uses[item] = 1
        reached[item] = i
        stored = heap_push(heap, slots, uses, reached, item, stored)
        used += size
    return hits


@jit
def decayed(objects: Ints, sizes: Longs, capacity: int, times: Longs, half_life: float) -> Flags:
    """Evict the least frequently used, each use counting half after ``half_life``, in
    units of ``times`` (LRFU, 2001).

    Uses count from the first request on, also those while an object was not cached; of
    equals the least recently used goes.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    # The logarithm, to base 2, of the decayed uses as of the first request: all decay
    # alike, so the order stays.
    heap, slots, uses, latest = make_heap(count)
    uses[:] = -np.inf
    stored = 0
    used = 0
    for i in range(len(objects)):
        item = objects[i]
        now = (times[i] - times[0]) / half_life
        more = max(uses[item], now)
        less = min(uses[item], now)
        uses[item] = more + np.log2(1 + 2.0 ** (less - more))
        latest[item] = i
        if slots[item] >= 0:
            hits[i] = 1
            heap_update(heap, slots, uses, latest, item, stored)
            continue
        size = sizes[item]
        if size > capacity:
            continue
        while used + size > capacity:
            victim = heap[0]
            stored = heap_remove(heap, slots, uses, latest, victim, stored)
            used -= sizes[victim]
        stored = heap_push(heap, slots, uses, latest, item, stored)
        used += size
    return hits


#: Uses for each byte are counted in uses for each megabyte: the same order, and the
#: numbers of other simulators.
_MEGABYTE = 1.0e6


@jit
def gdsf(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """Greedy dual size frequency: evicts the fewest uses for each byte, ageing by the
    priority of the last evicted.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    heap, slots, priority, latest = make_heap(count)
    uses = np.zeros(count, np.int64)
    age = 0.0
    stored = 0
    used = 0
    for i in range(len(objects)):
        item = objects[i]
        size = sizes[item]
        latest[item] = i
        if slots[item] >= 0:
            hits[i] = 1
            uses[item] += 1
            priority[item] = age + uses[item] * _MEGABYTE / size
            heap_update(heap, slots, priority, latest, item, stored)
            continue
        if size > capacity:
            continue
        uses[item] = 1
        priority[item] = age + _MEGABYTE / size
        stored = heap_push(heap, slots, priority, latest, item, stored)
        used += size
        # The new object competes with the others: it may leave at once.
        while used > capacity:
            victim = heap[0]
            age = priority[victim]
            stored = heap_remove(heap, slots, priority, latest, victim, stored)
            used -= sizes[victim]
    return hits
