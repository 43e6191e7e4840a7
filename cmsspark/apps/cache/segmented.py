"""Policies that keep what was used again apart from what was not: SLRU, 2Q, LIRS, W-TinyLFU.

Their form is that of :mod:`cmsspark.apps.cache.policies`, and they hit and miss as
libCacheSim's do, whose segments and windows they have. Objects larger than the part that
new ones enter are not admitted.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from cmsspark.apps.cache.policies import admit, evict, make_lists, push, unlink
from cmsspark.base.arrays import Flags, Ints, Longs, jit

#: Segments of SLRU, of one size.
_SEGMENTS = 4
#: 2Q: the shares of the queue of new objects and of the ghosts.
_IN_SHARE, _OUT_SHARE = 0.25, 0.5
#: W-TinyLFU: the share of the window, that of the main cache's lower segment, and after
#: how many hits for each byte of the main cache counts are halved.
_WINDOW_SHARE, _LOWER_SHARE, _SAMPLE = 0.01, 0.2, 32
#: LIRS: the share of resident objects that are not often used, and of sizes of the cache
#: that its stack remembers.
_HIR_SHARE, _STACK = 0.01, 2


#: Segments of a cache, from the lowest: the lists of their objects (following,
#: preceding), the segment of each object from 1 on, sizes of objects, bytes in each
#: segment, and the most that it holds.
_Segments: TypeAlias = tuple[Ints, Ints, Flags, Longs, Longs, Longs]


@jit
def _promote(segments: _Segments, item: int) -> None:
    """Move an object that was hit to the head of the next segment, or of the highest one.
    The oldest objects of it, and then of those below it, go down until each fits; those
    of the lowest leave.
    """
    following, preceding, where, sizes, used, most = segments
    lower = where[item] - 1
    segment = min(lower + 1, len(used) - 1)
    unlink(following, preceding, item)
    push(following, preceding, len(sizes) + segment, item)
    where[item] = segment + 1
    used[lower] -= sizes[item]
    used[segment] += sizes[item]
    while segment >= 0 and used[segment] > most[segment]:
        while used[segment] > most[segment]:
            item = preceding[len(sizes) + segment]
            unlink(following, preceding, item)
            used[segment] -= sizes[item]
            where[item] = segment  # 0: gone
            if segment > 0:
                push(following, preceding, len(sizes) + segment - 1, item)
                used[segment - 1] += sizes[item]
        segment -= 1


@jit
def _oldest(segments: _Segments) -> int:
    """Return the oldest object of the lowest segment that has one."""
    _, preceding, _, sizes, used, _ = segments
    for segment in range(len(used)):
        if used[segment] > 0:
            return int(preceding[len(sizes) + segment])
    return -1


@jit
def _drop(segments: _Segments) -> None:
    """Let that object leave."""
    following, preceding, where, sizes, used, _ = segments
    item = _oldest(segments)
    segment = where[item] - 1
    used[segment] -= evict(following, preceding, where, sizes, item)


@jit
def _enter(segments: _Segments, capacity: int, item: int) -> None:
    """Put an object into the lowest segment with room, else into the lowest one."""
    following, preceding, where, sizes, used, most = segments
    segment = 0
    while segment < len(used) and used[segment] + sizes[item] > most[segment]:
        segment += 1
    if segment == len(used):
        segment = 0
        while used.sum() + sizes[item] > capacity:
            _drop(segments)
    admit(following, preceding, where, len(sizes) + segment, item, segment + 1)
    used[segment] += sizes[item]


@jit
def slru(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """SLRU (1994): four segments; each hit moves an object up by one."""
    hits = np.zeros(len(objects), np.uint8)
    following, preceding = make_lists(len(sizes), _SEGMENTS)
    where = np.zeros(len(sizes), np.uint8)
    used = np.zeros(_SEGMENTS, np.int64)
    most = np.full(_SEGMENTS, capacity // _SEGMENTS)
    segments = (following, preceding, where, sizes, used, most)
    for i in range(len(objects)):
        item = objects[i]
        if where[item]:
            hits[i] = 1
            _promote(segments, item)
            continue
        if sizes[item] > most[0]:
            continue
        while used.sum() + sizes[item] > capacity:
            _drop(segments)
        _enter(segments, capacity, item)
    return hits


#: 2Q: where an object is.
_IN, _MAIN, _OUT = 1, 2, 3


@jit
def two_queues(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """2Q (VLDB 1994): a queue of new objects, and an LRU of those that came back after it."""
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    following, preceding = make_lists(count, 4)
    where = np.zeros(count, np.uint8)
    in_room, out_room = int(capacity * _IN_SHARE), int(capacity * _OUT_SHARE)
    main_room = capacity - in_room
    used = np.zeros(4, np.int64)
    for i in range(len(objects)):
        item = objects[i]
        size = sizes[item]
        if where[item] == _IN or where[item] == _MAIN:
            hits[i] = 1
            if where[item] == _MAIN:
                unlink(following, preceding, item)
                push(following, preceding, count + _MAIN, item)
            continue
        was_out = where[item] == _OUT
        if was_out:
            used[_OUT] -= evict(following, preceding, where, sizes, item)
        if size > in_room:
            continue
        while used[_IN] + used[_MAIN] + size > capacity:
            if used[_IN] > in_room:
                victim = preceding[count + _IN]
                freed = evict(following, preceding, where, sizes, victim)
                used[_IN] -= freed
                while used[_OUT] + freed > out_room:
                    ghost = preceding[count + _OUT]
                    used[_OUT] -= evict(following, preceding, where, sizes, ghost)
                admit(following, preceding, where, count + _OUT, victim, _OUT)
                used[_OUT] += freed
            else:
                victim = preceding[count + _MAIN]
                used[_MAIN] -= evict(following, preceding, where, sizes, victim)
        target = _IN
        if was_out:
            target = _MAIN
            while used[_MAIN] + size > main_room:
                victim = preceding[count + _MAIN]
                used[_MAIN] -= evict(following, preceding, where, sizes, victim)
        admit(following, preceding, where, count + target, item, target)
        used[target] += size
    return hits


@jit
def w_tinylfu(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """W-TinyLFU (TOS 2017): what leaves a small window enters the main cache, an SLRU,
    only if it was used more often than what would leave there. Uses are counted exactly.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    window_room = int(capacity * _WINDOW_SHARE)
    main_room = capacity - window_room
    newer, older = make_lists(count, 1)
    in_window = np.zeros(count, np.uint8)
    following, preceding = make_lists(count, 2)
    where = np.zeros(count, np.uint8)
    used = np.zeros(2, np.int64)
    most = np.array([int(_LOWER_SHARE * main_room), int((1 - _LOWER_SHARE) * main_room)])
    segments = (following, preceding, where, sizes, used, most)
    uses = np.zeros(count, np.int64)
    window_used = main_hits = 0
    for i in range(len(objects)):
        item = objects[i]
        size = sizes[item]
        if in_window[item]:
            hits[i] = 1
            unlink(newer, older, item)
            push(newer, older, count, item)
            continue
        if where[item]:
            hits[i] = 1
            _promote(segments, item)
            uses[item] += 1
            main_hits += 1
            if main_hits >= _SAMPLE * main_room:
                main_hits = 0
                uses >>= 1
            continue
        if size > window_room or size > most[0]:
            continue
        while window_used + used.sum() + size > capacity:
            if window_used == 0:
                _drop(segments)
                continue
            leaver = older[count]
            window_used -= evict(newer, older, in_window, sizes, leaver)
            if used.sum() + sizes[leaver] <= main_room:
                _enter(segments, main_room, leaver)
            elif uses[leaver] > uses[_oldest(segments)]:
                _drop(segments)
                _enter(segments, main_room, leaver)
            uses[leaver] += 1
        admit(newer, older, in_window, count, item, 1)
        window_used += size
        uses[item] += 1
    return hits


#: LIRS: marks of an object in the stack: often used; resident; not resident.
_LIR, _RESIDENT, _GONE = 1, 2, 3


#: Parts of a LIRS cache: the stack, the queue of resident objects that are not often
#: used, the objects that only the stack remembers; sizes of objects; bytes often used,
#: in the queue, in the stack.
_Lirs: TypeAlias = tuple[Ints, Ints, Flags, Ints, Ints, Flags, Ints, Ints, Longs, Longs]


@jit
def _prune(parts: _Lirs) -> None:
    """Take what is not often used from the bottom of the stack, but for its top."""
    stack, stack_older, state, _, _, _, ghosts, ghosts_older, sizes, totals = parts
    count = len(sizes)
    while stack_older[count] != stack[count]:
        item = stack_older[count]
        if state[item] == _LIR:
            break
        if state[item] == _GONE:
            unlink(ghosts, ghosts_older, item)
        totals[2] -= evict(stack, stack_older, state, sizes, item)


@jit
def _make_room(parts: _Lirs, size: int, room: int) -> None:
    """Let the oldest objects of the queue leave the cache until ``size`` bytes fit; the
    stack remembers them.
    """
    _, _, state, queue, queue_older, in_queue, ghosts, ghosts_older, sizes, totals = parts
    while totals[1] + size > room:
        item = queue_older[len(sizes)]
        totals[1] -= evict(queue, queue_older, in_queue, sizes, item)
        if state[item]:
            state[item] = _GONE
            push(ghosts, ghosts_older, len(sizes), item)


@jit
def _demote(parts: _Lirs, size: int, often_room: int, room: int) -> None:
    """Move objects at the bottom of the stack to the queue until ``size`` bytes more may
    be often used, and prune the stack.
    """
    stack, stack_older, state, queue, queue_older, in_queue, _, _, sizes, totals = parts
    while totals[0] + size > often_room:
        item = stack_older[len(sizes)]
        freed = sizes[item]
        totals[2] -= evict(stack, stack_older, state, sizes, item)
        totals[0] -= freed
        if freed <= room:
            _make_room(parts, freed, room)
            admit(queue, queue_older, in_queue, len(sizes), item, 1)
            totals[1] += freed
        _prune(parts)


@jit
def lirs(objects: Ints, sizes: Longs, capacity: int) -> Flags:
    """LIRS (SIGMETRICS 2002): keeps what was used again after few others; new objects
    have a hundredth of the cache.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    room = max(1, int(capacity * _HIR_SHARE))
    often_room = capacity - room
    stack, stack_older = make_lists(count, 1)
    queue, queue_older = make_lists(count, 1)
    ghosts, ghosts_older = make_lists(count, 1)
    state, in_queue = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    totals = np.zeros(3, np.int64)
    lists = (stack, stack_older, state, queue, queue_older, in_queue)
    parts = (*lists, ghosts, ghosts_older, sizes, totals)
    for i in range(len(objects)):
        item = objects[i]
        size = sizes[item]
        if state[item]:
            unlink(stack, stack_older, item)
            push(stack, stack_older, count, item)
        if in_queue[item]:
            unlink(queue, queue_older, item)
            push(queue, queue_older, count, item)
        if state[item] == _LIR:
            hits[i] = 1
            _prune(parts)
        elif state[item] == _RESIDENT or (state[item] == _GONE and size <= capacity):
            if state[item] == _RESIDENT:
                hits[i] = 1
                if in_queue[item]:
                    totals[1] -= evict(queue, queue_older, in_queue, sizes, item)
            _demote(parts, size, often_room, room)
            if state[item] == _GONE:
                unlink(ghosts, ghosts_older, item)
            state[item] = _LIR
            totals[0] += size
        elif in_queue[item]:
            hits[i] = 1
            _demote(parts, size, often_room, room)
            admit(stack, stack_older, state, count, item, _RESIDENT)
            totals[2] += size
        elif size <= often_room and size <= room:
            if totals[0] + size <= often_room:
                admit(stack, stack_older, state, count, item, _LIR)
                totals[0] += size
            else:
                _make_room(parts, size, room)
                admit(stack, stack_older, state, count, item, _RESIDENT)
                admit(queue, queue_older, in_queue, count, item, 1)
                totals[1] += size
            totals[2] += size
        while totals[2] > _STACK * capacity and ghosts_older[count] != count:
            ghost = ghosts_older[count]
            unlink(ghosts, ghosts_older, ghost)
            totals[2] -= evict(stack, stack_older, state, sizes, ghost)
    return hits
