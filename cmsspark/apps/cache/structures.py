"""Doubly linked lists and binary heaps of objects in arrays, for cache policies.

An object is its number, 0 to n − 1. List number k has its two ends in slot n + k:
``following[n + k]`` is the newest object and ``preceding[n + k]`` the oldest; both are
n + k in an empty list. An object is in at most one list.

In a heap the least (priority, tie) is at the top. ``heap[i]`` is the object in slot i,
``slots[object]`` its slot or −1. The size is passed and returned.
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
