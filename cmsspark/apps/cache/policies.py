"""Eviction policies, and the lists and heaps of objects that they work on.

Each policy replays a trace and says which requests were hits. All take (objects: int32,
one for each request; sizes: int64 bytes, one for each object; capacity: bytes) and
return uint8, 1 where a request was a hit. The cache is cold at the start. A missed
object is admitted; objects larger than the cache are not. Sizes are positive and do not
change in a trace.

An object is its number, 0 to n − 1. Doubly linked list number k has its two ends in slot
n + k: ``following[n + k]`` is the newest object and ``preceding[n + k]`` the oldest; both
are n + k in an empty list. An object is in at most one list. In a heap the least
(priority, tie) is at the top. ``heap[i]`` is the object in slot i, ``slots[object]`` its
slot or −1. The size is passed and returned.
"""

from __future__ import annotations

import numpy as np

from cmsspark.base.arrays import Flags, Floats, Ints, Longs, jit


@jit
def make_lists(object_count: int, list_count: int) -> tuple[Ints, Ints]:
    """Empty lists: (following, preceding), each int32 of object_count + list_count."""
    following = np.arange(object_count + list_count).astype(np.int32)
    return following, following.copy()


@jit
def push(following: Ints, preceding: Ints, end: int, item: int) -> None:
    """Make an object the newest of the list with this end."""
    newest = following[end]
    following[item] = newest
    preceding[item] = end
    preceding[newest] = item
    following[end] = item


@jit
def unlink(following: Ints, preceding: Ints, item: int) -> None:
    """Take an object out of its list."""
    after = following[item]
    before = preceding[item]
    following[before] = after
    preceding[after] = before


@jit
def admit(following: Ints, preceding: Ints, marks: Flags, end: int, item: int, mark: int) -> None:
    """Make an object the newest of the list with this end, and mark it."""
    push(following, preceding, end, item)
    marks[item] = mark


@jit
def evict(following: Ints, preceding: Ints, marks: Flags, sizes: Longs, item: int) -> int:
    """Take an object out of its list and clear its mark; its bytes."""
    unlink(following, preceding, item)
    marks[item] = 0
    freed: int = sizes[item]
    return freed


@jit
def make_heap(count: int) -> tuple[Ints, Ints, Floats, Longs]:
    """Return an empty heap of ``count`` objects: heap, slots, the priority of each
    object, and what decides ties.
    """
    slots = np.full(count, -1, np.int32)
    return np.empty(count, np.int32), slots, np.zeros(count, np.float64), np.zeros(count, np.int64)


@jit
def _rise(heap: Ints, slots: Ints, priority: Floats, tie: Longs, slot: int) -> int:
    item = heap[slot]
    key = priority[item]
    second = tie[item]
    while slot > 0:
        parent = (slot - 1) >> 1
        parent_item = heap[parent]
        if priority[parent_item] < key or (
            priority[parent_item] == key and tie[parent_item] <= second
        ):
            break
        heap[slot] = parent_item
        slots[parent_item] = slot
        slot = parent
    heap[slot] = item
    slots[item] = slot
    return slot


@jit
def _sink(heap: Ints, slots: Ints, priority: Floats, tie: Longs, slot: int, size: int) -> None:
    item = heap[slot]
    key = priority[item]
    second = tie[item]
    while True:
        child = 2 * slot + 1
        if child >= size:
            break
        least = heap[child]
        if child + 1 < size:
            right = heap[child + 1]
            if priority[right] < priority[least] or (
                priority[right] == priority[least] and tie[right] < tie[least]
            ):
                child += 1
                least = right
        if key < priority[least] or (key == priority[least] and second <= tie[least]):
            break
        heap[slot] = least
        slots[least] = slot
        slot = child
    heap[slot] = item
    slots[item] = slot


@jit
def heap_update(
    heap: Ints, slots: Ints, priority: Floats, tie: Longs, item: int, size: int
) -> None:
    """Restore the order after the key of an object in the heap was changed."""
    _sink(heap, slots, priority, tie, _rise(heap, slots, priority, tie, slots[item]), size)


@jit
def heap_push(heap: Ints, slots: Ints, priority: Floats, tie: Longs, item: int, size: int) -> int:
    """Add an object, whose key is set; the new size."""
    heap[size] = item
    slots[item] = size
    _rise(heap, slots, priority, tie, size)
    return size + 1


@jit
def heap_remove(
    heap: Ints, slots: Ints, priority: Floats, tie: Longs, item: int, size: int
) -> int:
    """Take an object out; the new size."""
    slot = slots[item]
    slots[item] = -1
    size -= 1
    if slot < size:
        last = heap[size]
        heap[slot] = last
        slots[last] = slot
        heap_update(heap, slots, priority, tie, last, size)
    return size


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


#: Where an object is.
_ABSENT, _SMALL, _MAIN = 0, 1, 2
#: S3-FIFO: the share of the small queue, that of the ghost queue, uses that move an
#: object to the main queue, and the most uses that the main queue remembers.
_SMALL_SHARE, _GHOST_SHARE, _MOVE_AT, _MOST_USES = 0.10, 0.90, 2, 3


@jit
def s3fifo(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """S3-FIFO (SOSP 2023): a small queue filters what is used once; a ghost queue
    remembers what it let go.

    Objects that do not fit into the small queue, a tenth of the cache, are not admitted.
    """
    hits = np.zeros(len(objects), np.uint8)
    count, small_end, main_end = len(sizes), len(sizes), len(sizes) + 1
    following, preceding = make_lists(count, 2)
    # An object may be a ghost only while it is absent, but ghosts are remembered in an
    # order of their own.
    newer, older = make_lists(count, 1)
    where, is_ghost, uses = (
        np.zeros(count, np.uint8),
        np.zeros(count, np.uint8),
        np.zeros(count, np.int64),
    )
    small_room, ghost_room = int(capacity * _SMALL_SHARE), int(capacity * _GHOST_SHARE)
    small_used = main_used = ghost_used = 0
    has_evicted = False
    for i in range(len(objects)):
        item = objects[i]
        if where[item] != _ABSENT:
            hits[i] = 1
            uses[item] += 1
            continue
        size, was_ghost = sizes[item], is_ghost[item] == 1
        if was_ghost:
            ghost_used -= evict(newer, older, is_ghost, sizes, item)
        if size > small_room:
            continue
        while small_used + main_used + size > capacity:
            has_evicted = True
            if main_used > capacity - small_room or small_used == 0:
                # The main queue is a clock with two bits.
                victim = preceding[main_end]
                if uses[victim] > 0:
                    uses[victim] = min(uses[victim], _MOST_USES) - 1
                    unlink(following, preceding, victim)
                    push(following, preceding, main_end, victim)
                else:
                    main_used -= evict(following, preceding, where, sizes, victim)
                continue
            victim = preceding[small_end]
            while small_used > 0 and uses[victim] >= _MOVE_AT:
                moved = evict(following, preceding, where, sizes, victim)
                uses[victim] = 0
                admit(following, preceding, where, main_end, victim, _MAIN)
                small_used -= moved
                main_used += moved
                victim = preceding[small_end]
            if small_used > 0:
                freed = evict(following, preceding, where, sizes, victim)
                small_used -= freed
                if freed <= ghost_room:
                    while ghost_used + freed > ghost_room:
                        ghost_used -= evict(newer, older, is_ghost, sizes, older[count])
                    admit(newer, older, is_ghost, count, victim, 1)
                    ghost_used += freed
        if was_ghost or (size < small_room and not has_evicted and small_used >= small_room):
            admit(following, preceding, where, main_end, item, _MAIN)
            main_used += size
        elif size < small_room:
            admit(following, preceding, where, small_end, item, _SMALL)
            small_used += size
        uses[item] = 0
    return hits


#: ARC: the lists of what was used once and more than once, and the ghosts of both.
_ONCE, _OFTEN, _ONCE_GHOST, _OFTEN_GHOST = 1, 2, 3, 4


@jit
def arc(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """ARC (FAST 2003) in bytes: balances recency and frequency by what it should not have evicted."""
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    following, preceding = make_lists(count, 5)
    where = np.zeros(count, np.uint8)
    totals = np.zeros(5, np.int64)
    target = 0.0
    for i in range(len(objects)):
        item = objects[i]
        size = sizes[item]
        state = where[item]
        if state in (_ONCE, _OFTEN):
            hits[i] = 1
            totals[state] -= evict(following, preceding, where, sizes, item)
            admit(following, preceding, where, count + _OFTEN, item, _OFTEN)
            totals[_OFTEN] += size
            continue
        if state == _ONCE_GHOST:
            target = min(
                target + max(totals[_OFTEN_GHOST] / totals[_ONCE_GHOST], 1.0), float(capacity)
            )
        elif state == _OFTEN_GHOST:
            target = max(target - max(totals[_ONCE_GHOST] / totals[_OFTEN_GHOST], 1.0), 0.0)
        if state != _ABSENT:
            totals[state] -= evict(following, preceding, where, sizes, item)
        if size > capacity:
            continue
        while totals[_ONCE] + totals[_OFTEN] + size > capacity:
            forget = 0
            if state == _ABSENT:
                if totals[_ONCE] + totals[_ONCE_GHOST] + size > capacity:
                    forget = _ONCE_GHOST if totals[_ONCE_GHOST] > 0 else _ONCE
                elif (
                    totals[_ONCE] + totals[_ONCE_GHOST] + totals[_OFTEN] + totals[_OFTEN_GHOST]
                    >= 2 * capacity
                ):
                    forget = _OFTEN_GHOST if totals[_OFTEN_GHOST] > 0 else 0
            if forget:
                totals[forget] -= evict(
                    following, preceding, where, sizes, preceding[count + forget]
                )
                if forget == _ONCE:
                    continue
            is_once = totals[_OFTEN] == 0 or (
                totals[_ONCE] > 0
                and (totals[_ONCE] > target or (totals[_ONCE] == target and state == _OFTEN_GHOST))
            )
            source = _ONCE if is_once else _OFTEN
            victim = preceding[count + source]
            ghost = source + 2
            totals[source] -= evict(following, preceding, where, sizes, victim)
            admit(following, preceding, where, count + ghost, victim, ghost)
            totals[ghost] += sizes[victim]
        kind = _ONCE if state == _ABSENT else _OFTEN
        admit(following, preceding, where, count + kind, item, kind)
        totals[kind] += size
    return hits
