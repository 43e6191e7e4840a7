"""A binary heap of objects with changing keys: (priority, tie) ascending, the least at the top.

``heap[i]`` is the object at place i, ``where[object]`` its place or −1. The size is passed and returned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cmsspark.apps.cache.jit import jit

Ints = np.ndarray[Any, np.dtype[np.int32]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Longs = np.ndarray[Any, np.dtype[np.int64]]


@jit
def _rise(heap: Ints, where: Ints, priority: Floats, tie: Longs, place: int) -> int:
    item = heap[place]
    key = priority[item]
    second = tie[item]
    while place > 0:
        parent = (place - 1) >> 1
        other = heap[parent]
        if priority[other] < key or (priority[other] == key and tie[other] <= second):
            break
        heap[place] = other
        where[other] = place
        place = parent
    heap[place] = item
    where[item] = place
    return place


@jit
def _sink(heap: Ints, where: Ints, priority: Floats, tie: Longs, place: int, size: int) -> None:
    item = heap[place]
    key = priority[item]
    second = tie[item]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        least = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if priority[other] < priority[least] or (priority[other] == priority[least] and tie[other] < tie[least]):
                child += 1
                least = other
        if key < priority[least] or (key == priority[least] and second <= tie[least]):
            break
        heap[place] = least
        where[least] = place
        place = child
    heap[place] = item
    where[item] = place


@jit
def heap_update(heap: Ints, where: Ints, priority: Floats, tie: Longs, item: int, size: int) -> None:
    """Restore the order after the key of an object in the heap was changed."""
    _sink(heap, where, priority, tie, _rise(heap, where, priority, tie, where[item]), size)


@jit
def heap_push(heap: Ints, where: Ints, priority: Floats, tie: Longs, item: int, size: int) -> int:
    """Add an object, whose key is set; the new size."""
    heap[size] = item
    where[item] = size
    _rise(heap, where, priority, tie, size)
    return size + 1


@jit
def heap_remove(heap: Ints, where: Ints, priority: Floats, tie: Longs, item: int, size: int) -> int:
    """Take an object out; the new size."""
    place = where[item]
    where[item] = -1
    size -= 1
    if place < size:
        last = heap[size]
        heap[place] = last
        where[last] = place
        heap_update(heap, where, priority, tie, last, size)
    return size
