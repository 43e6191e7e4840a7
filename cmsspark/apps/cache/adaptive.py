"""Policies with several queues and a memory of what they evicted, S3-FIFO and ARC.

Their form is that of :mod:`cmsspark.apps.cache.policies`.
"""

from __future__ import annotations

import numpy as np

from cmsspark.apps.cache.queues import admit, evict, make_lists, push, unlink
from cmsspark.base.arrays import Flags, Ints, Longs
from cmsspark.base.jit import jit

#: Where an object is.
_ABSENT, _SMALL, _MAIN = 0, 1, 2
#: S3-FIFO: the share of the small queue, that of the ghost queue, uses that move an
#: object to the main queue, and the most uses that the main queue remembers.
_SMALL_SHARE, _GHOST_SHARE, _MOVE_AT, _MOST_USES = 0.10, 0.90, 2, 3


@jit
def _forget(following: Ints, preceding: Ints, is_ghost: Flags, sizes: Longs, excess: int) -> int:
    """Forget the oldest ghosts, at least ``excess`` bytes of them; their bytes."""
    forgotten = 0
    while forgotten < excess:
        forgotten += evict(following, preceding, is_ghost, sizes, preceding[len(sizes)])
    return forgotten


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
                    ghost_used -= _forget(
                        newer, older, is_ghost, sizes, ghost_used + freed - ghost_room
                    )
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
