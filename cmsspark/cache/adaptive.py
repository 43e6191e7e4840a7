"""Policies with several queues and a memory of what they evicted, as :mod:`cmsspark.cache.policies`: S3-FIFO, ARC."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmsspark.cache.jit import jit
from cmsspark.cache.queues import make_lists, push, unlink

Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Hits = np.ndarray[Any, np.dtype[np.uint8]]

#: Where an object is.
_ABSENT, _SMALL, _MAIN = 0, 1, 2
#: S3-FIFO: the share of the small queue, that of the ghost queue, uses that move an object to the main queue, and the
#: most uses that the main queue remembers.
_SMALL_SHARE, _GHOST_SHARE, _MOVE_AT, _MOST_USES = 0.10, 0.90, 2, 3


@jit
def s3fifo(objects: Ints, sizes: Longs, capacity: int) -> Hits:
    """S3-FIFO (SOSP 2023): a small queue filters what is used once; a ghost queue remembers what it let go.

    Objects that do not fit into the small queue, a tenth of the cache, are not admitted.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    small_end, main_end, ghost_end = count, count + 1, 0
    following, preceding = make_lists(count, 2)
    # An object may be a ghost only while it is absent, but ghosts are remembered in an order of their own.
    ghost_following, ghost_preceding = make_lists(count, 1)
    ghost_end = count
    where = np.zeros(count, np.uint8)
    is_ghost = np.zeros(count, np.uint8)
    uses = np.zeros(count, np.int64)
    small_room = int(capacity * _SMALL_SHARE)
    main_room = capacity - small_room
    ghost_room = int(capacity * _GHOST_SHARE)
    small_used = main_used = ghost_used = 0
    has_evicted = False
    for i in range(len(objects)):
        item = objects[i]
        if where[item] != _ABSENT:
            hits[i] = 1
            uses[item] += 1
            continue
        size = sizes[item]
        was_ghost = is_ghost[item] == 1
        if was_ghost:
            unlink(ghost_following, ghost_preceding, item)
            is_ghost[item] = 0
            ghost_used -= size
        if size > small_room or size > capacity:
            continue
        while small_used + main_used + size > capacity:
            has_evicted = True
            if main_used > main_room or small_used == 0:
                # The main queue is a clock with two bits.
                while main_used > 0:
                    victim = preceding[main_end]
                    unlink(following, preceding, victim)
                    if uses[victim] > 0:
                        uses[victim] = min(uses[victim], _MOST_USES) - 1
                        push(following, preceding, main_end, victim)
                        continue
                    main_used -= sizes[victim]
                    where[victim] = _ABSENT
                    break
                continue
            while small_used > 0:
                victim = preceding[small_end]
                unlink(following, preceding, victim)
                victim_size = sizes[victim]
                small_used -= victim_size
                if uses[victim] >= _MOVE_AT:
                    uses[victim] = 0
                    push(following, preceding, main_end, victim)
                    where[victim] = _MAIN
                    main_used += victim_size
                    continue
                where[victim] = _ABSENT
                if victim_size <= ghost_room:
                    while ghost_used + victim_size > ghost_room:
                        oldest = ghost_preceding[ghost_end]
                        unlink(ghost_following, ghost_preceding, oldest)
                        is_ghost[oldest] = 0
                        ghost_used -= sizes[oldest]
                    push(ghost_following, ghost_preceding, ghost_end, victim)
                    is_ghost[victim] = 1
                    ghost_used += victim_size
                break
        if was_ghost or (size < small_room and not has_evicted and small_used >= small_room):
            push(following, preceding, main_end, item)
            where[item] = _MAIN
            main_used += size
        elif size < small_room:
            push(following, preceding, small_end, item)
            where[item] = _SMALL
            small_used += size
        uses[item] = 0
    return hits


#: ARC: the lists of what was used once and more than once, and the ghosts of both.
_ONCE, _OFTEN, _ONCE_GHOST, _OFTEN_GHOST = 1, 2, 3, 4


@jit
def arc(objects: Ints, sizes: Longs, capacity: int) -> Hits:
    """ARC (FAST 2003) in bytes: balances recency and frequency by what it should not have evicted."""
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    following, preceding = make_lists(count, 5)
    where = np.zeros(count, np.uint8)
    held = np.zeros(5, np.int64)
    target = 0.0
    for i in range(len(objects)):
        item = objects[i]
        size = sizes[item]
        state = where[item]
        if state in (_ONCE, _OFTEN):
            hits[i] = 1
            unlink(following, preceding, item)
            push(following, preceding, count + _OFTEN, item)
            where[item] = _OFTEN
            held[state] -= size
            held[_OFTEN] += size
            continue
        if state == _ONCE_GHOST:
            target = min(target + max(held[_OFTEN_GHOST] / held[_ONCE_GHOST], 1.0), float(capacity))
        elif state == _OFTEN_GHOST:
            target = max(target - max(held[_ONCE_GHOST] / held[_OFTEN_GHOST], 1.0), 0.0)
        if state != _ABSENT:
            unlink(following, preceding, item)
            held[state] -= size
            where[item] = _ABSENT
        if size > capacity:
            continue
        while held[_ONCE] + held[_OFTEN] + size > capacity:
            forget = 0
            if state == _ABSENT:
                if held[_ONCE] + held[_ONCE_GHOST] + size > capacity:
                    forget = _ONCE_GHOST if held[_ONCE_GHOST] > 0 else _ONCE
                elif held[_ONCE] + held[_ONCE_GHOST] + held[_OFTEN] + held[_OFTEN_GHOST] >= 2 * capacity:
                    forget = _OFTEN_GHOST if held[_OFTEN_GHOST] > 0 else 0
            if forget:
                victim = preceding[count + forget]
                unlink(following, preceding, victim)
                where[victim] = _ABSENT
                held[forget] -= sizes[victim]
                if forget == _ONCE:
                    continue
            is_once = held[_OFTEN] == 0 or (
                held[_ONCE] > 0 and (held[_ONCE] > target or (held[_ONCE] == target and state == _OFTEN_GHOST))
            )
            source = _ONCE if is_once else _OFTEN
            victim = preceding[count + source]
            ghost = source + 2
            unlink(following, preceding, victim)
            push(following, preceding, count + ghost, victim)
            where[victim] = ghost
            held[source] -= sizes[victim]
            held[ghost] += sizes[victim]
        kind = _ONCE if state == _ABSENT else _OFTEN
        push(following, preceding, count + kind, item)
        where[item] = kind
        held[kind] += size
    return hits
