"""Replays of a trace: each policy by its name, what it missed, and how far it is from
LRU and from the bound.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from cmsspark.apps.cache import forecast, policies, segmented
from cmsspark.apps.cache.policies import lru
from cmsspark.apps.cache.structures import (
    evict,
    heap_push,
    heap_remove,
    heap_update,
    make_heap,
    make_lists,
    push,
    unlink,
)
from cmsspark.apps.cache.trace import Trace
from cmsspark.base.arrays import Array, Flags, Floats, Ints, Longs, jit
from cmsspark.base.entry_points import with_packages
from cmsspark.base.errors import DataError, UsageError

# What no policy can beat on a trace: first requests, Belady's MIN for equal sizes, and
# a bound for sized objects.


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


# Policies that know how popular each object is expected to be. As
# :mod:`cmsspark.apps.cache.policies`, with scores.

#: A change of the rule needs a lead of so many times what the cache holds; this loss
#: against LRU ends scores. Over 10 seeds of six workloads at seven sizes the mean is at
#: most 0.1 % above LRU with both, and a seed 1.4 %.
_PATIENCE, _MOST_LOSS = 1.5, 0.003


@jit
def rescore(
    heap: Ints, slots: Ints, score: Floats, latest: Longs, stored: int, values: Floats
) -> None:
    """Take the scores of another period, NaN as 0, and order the heap of ``stored``
    objects by them.
    """
    for item in range(len(values)):
        score[item] = values[item] if values[item] == values[item] else 0.0
    pushed = 0
    for slot in range(stored):
        pushed = heap_push(heap, slots, score, latest, heap[slot], pushed)


@jit
def least_score(
    objects: Ints, sizes: Longs, capacity: int, periods: Ints, scores: Floats
) -> Flags:
    """Evict the lowest score, of equals the least recently used. What is missed
    competes: it may leave at once.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    heap, slots, score, latest = make_heap(count)
    stored = used = 0
    period = -1
    for i in range(len(objects)):
        if periods[i] != period:
            period = periods[i]
            rescore(heap, slots, score, latest, stored, scores[period])
        item = objects[i]
        latest[item] = i
        if slots[item] >= 0:
            hits[i] = 1
            heap_update(heap, slots, score, latest, item, stored)
            continue
        size = sizes[item]
        if size > capacity:
            continue
        stored = heap_push(heap, slots, score, latest, item, stored)
        used += size
        while used > capacity:
            victim = heap[0]
            stored = heap_remove(heap, slots, score, latest, victim, stored)
            used -= sizes[victim]
    return hits


@jit
def least_score_or_lru(
    objects: Ints, sizes: Longs, capacity: int, periods: Ints, scores: Floats, costs: Longs
) -> tuple[Flags, Flags]:
    """Evict the lowest score while that pays, else the least recently used object.

    Returns the hits, and for each request whether scores decided. Both rules are
    replayed beside it. The cache begins with LRU, and takes up the other rule when that
    has missed less, since it was last behind, by one and a half times what the cache
    holds: more than the change of its content costs. It gives scores up, for good
    unless LRU makes up for it, where it has missed 0.3 % more than LRU. ``costs``: what
    a miss of each object counts.
    """
    hits = np.zeros(len(objects), np.uint8)
    by_score = least_score(objects, sizes, capacity, periods, scores)
    by_use = lru(objects, sizes, capacity)
    is_scored = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    heap, slots, score, latest = make_heap(count)
    following, preceding = make_lists(count, 1)
    stored = used = 0
    period = -1
    stored_costs = 0.0
    lead = missed = missed_by_lru = 0.0
    leader = 0
    is_full = False
    for i in range(len(objects)):
        if periods[i] != period:
            period = periods[i]
            rescore(heap, slots, score, latest, stored, scores[period])
        item = objects[i]
        size = sizes[item]
        latest[item] = i
        missed_by_lru += costs[item] * (1.0 - by_use[i])
        gain = costs[item] * (float(by_score[i]) - float(by_use[i]))
        lead = max(lead + (-gain if leader else gain), 0.0)
        is_safe = missed <= missed_by_lru * (1 + _MOST_LOSS)
        if is_full and lead > _PATIENCE * stored_costs and is_safe:
            leader, lead = 1 - leader, 0.0
        if leader and not is_safe:
            leader, lead = 0, 0.0
        is_scored[i] = leader
        if slots[item] >= 0:
            hits[i] = 1
            heap_update(heap, slots, score, latest, item, stored)
            unlink(following, preceding, item)
            push(following, preceding, count, item)
            continue
        missed += costs[item]
        if size > capacity:
            continue
        is_full = is_full or used + size > capacity
        stored = heap_push(heap, slots, score, latest, item, stored)
        push(following, preceding, count, item)
        used += size
        stored_costs += costs[item]
        while used > capacity:
            victim = heap[0] if leader else preceding[count]
            unlink(following, preceding, victim)
            stored = heap_remove(heap, slots, score, latest, victim, stored)
            used -= sizes[victim]
            stored_costs -= costs[victim]
    return hits, is_scored


@jit
def protected_lru(
    objects: Ints, sizes: Longs, capacity: int, periods: Ints, protected: Flags, share: float
) -> Flags:
    """LRU that evicts protected objects last. ``protected``: uint8 [periods, objects],
    known at a period's start.

    At most ``share`` of the cache is protected, the most recently used first; with 1.0
    all that is protected stays while there is anything else to evict.
    """
    hits = np.zeros(len(objects), np.uint8)
    count = len(sizes)
    following, preceding = make_lists(count, 2)
    state = np.zeros(count, np.uint8)  # 1: in the normal list, 2: in the protected one
    latest = np.zeros(count, np.int64)
    most = int(capacity * share)
    used = 0
    guarded = 0
    period = -1
    for i in range(len(objects)):
        if periods[i] != period:
            period = periods[i]
            cached = np.nonzero(state)[0]
            following, preceding = make_lists(count, 2)
            guarded = 0
            newest_first = cached[np.argsort(latest[cached])[::-1]]
            for item in newest_first:
                state[item] = 1
                if protected[period, item] and guarded + sizes[item] <= most:
                    state[item] = 2
                    guarded += sizes[item]
            for item in newest_first[::-1]:
                push(following, preceding, count + state[item] - 1, item)
        item = objects[i]
        size = sizes[item]
        latest[item] = i
        if state[item]:
            hits[i] = 1
            unlink(following, preceding, item)
            push(following, preceding, count + state[item] - 1, item)
            continue
        if size > capacity:
            continue
        while used + size > capacity:
            victim = preceding[count]
            if victim == count:
                victim = preceding[count + 1]
                guarded -= sizes[victim]
            used -= evict(following, preceding, state, sizes, victim)
        state[item] = 1
        if protected[period, item] and guarded + size <= most:
            state[item] = 2
            guarded += size
        push(following, preceding, count + state[item] - 1, item)
        used += size
    return hits


#: Policies that need the trace and the size only.
_BUILT_IN: Final[dict[str, Callable[..., Array]]] = {
    "fifo": policies.fifo,
    "lru": policies.lru,
    "lfu": policies.lfu,
    "gdsf": policies.gdsf,
    "sieve": policies.sieve,
    "s3fifo": policies.s3fifo,
    "arc": policies.arc,
    "slru": segmented.slru,
    "2q": segmented.two_queues,
    "lirs": segmented.lirs,
    "w-tinylfu": segmented.w_tinylfu,
}
#: With those of installed packages: functions of the entry point group ``cmsspark.policies``.
PLAIN: Final = with_packages("cmsspark.policies", _BUILT_IN, lambda entry: entry.load())
#: The largest object that a policy admits, as a share of the cache, if not all of it.
_ADMITTED: Final = {"s3fifo": 0.1, "slru": 0.25, "2q": 0.25, "lirs": 0.01, "w-tinylfu": 0.01}
#: Policies that need a forecast: evict the lowest score, or the lowest score for each
#: byte; protect what will be popular, all of it or up to a half of the cache.
WITH_SCORES: Final = ("learned", "learned-per-byte", "protected", "protected-half")
NAMES: Final = (*PLAIN, "decayed", *WITH_SCORES)
#: A request counts half after so many milliseconds in the policy ``decayed``: two days.
_HALF_LIFE_MS: Final = 2.0 * forecast.DAY_MS
#: What each policy evicts, in a line.
ABOUT: Final = {
    "fifo": "what was admitted first",
    "lru": "what was used least recently",
    "lfu": "what was used least often since it was admitted",
    "gdsf": "the fewest uses for each byte, with ageing (greedy dual size frequency)",
    "decayed": "what was used least often, a use counting half after two days (LRFU)",
    "sieve": "the oldest object that was not used since the hand passed (SIEVE)",
    "s3fifo": "what a small queue saw only once, then by a clock (S3-FIFO)",
    "arc": "by recency or frequency, whichever misses less (ARC, in bytes)",
    "slru": "by segments that a hit moves an object up in (SLRU)",
    "2q": "what did not come back after a queue of new objects let it go, then as LRU (2Q)",
    "lirs": "what was used again after many other objects (LIRS)",
    "w-tinylfu": "what was used less often than what would take its place (W-TinyLFU)",
    "learned": "what its scores say is needed least in the coming days; as LRU does while that misses fewer bytes",
    "learned-per-byte": "the same, for each byte; as LRU does while that misses fewer requests",
    "protected": "LRU that evicts what will be popular last, however much that is",
    "protected-half": "the same, with at most half of the cache protected",
    **{
        name: (inspect.getdoc(policy) or "").partition("\n")[0].rstrip(".")
        for name, policy in PLAIN.items()
        if name not in _BUILT_IN
    },
}
#: An object is taken for popular where it is expected on at least this share of the coming days.
POPULAR_SHARE: Final = 0.5
#: Scores of all days and objects of a trace: 8 GB.
_MOST_SCORES: Final = 10**9


def check_policies(names: Iterable[str]) -> None:
    """Raise UsageError (2) for a name of no policy."""
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"there is no policy {name!r}", next_step=f"one of {', '.join(NAMES)}"
            )


@dataclass(frozen=True)
class Replay:
    """What a policy missed of a trace. Requests and bytes of requests; ``compulsory``:
    first requests, which any cache misses; ``bypassed``: requests of objects larger
    than the cache.
    """

    policy: str
    capacity: int
    requests: int
    misses: int
    compulsory: int
    bypassed: int
    requested_bytes: int
    missed_bytes: int
    compulsory_bytes: int
    #: Of the policies that fall back to LRU: the share of requests before which scores
    #: decided; else None.
    scored_share: float | None = None

    @property
    def miss_ratio(self) -> float:
        """Missed requests, as a share of all."""
        return self.misses / self.requests

    @property
    def byte_miss_ratio(self) -> float:
        """Missed bytes, as a share of all bytes that were requested."""
        return self.missed_bytes / self.requested_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, with both ratios."""
        return {
            **asdict(self),
            "miss_ratio": self.miss_ratio,
            "byte_miss_ratio": self.byte_miss_ratio,
        }


@jit
def sums(
    objects: Array, sizes: Array, capacity: int, admitted: float, hits: Array, reads: Array
) -> tuple[int, int, int, int, int, int, int]:
    """Return the requests, misses, first requests, and requests of objects larger than
    the cache; and the bytes that were requested, missed, and requested first.

    ``reads``: how often each request is repeated at once, or nothing. Repeated ones hit
    if the object is not larger than the ``admitted`` bytes.
    """
    is_seen = np.zeros(len(sizes), np.uint8)
    requests = misses = first = bypassed = requested = missed = first_bytes = 0
    for i in range(len(objects)):
        size = sizes[objects[i]]
        count = reads[i] if len(reads) else 1
        requests += count
        if not is_seen[objects[i]]:
            is_seen[objects[i]] = 1
            first += 1
            first_bytes += size
        requested += size * count
        if size > capacity:
            bypassed += count
        if not hits[i]:
            if size <= admitted:
                count = 1
            misses += count
            missed += size * count
    return requests, misses, first, bypassed, requested, missed, first_bytes


class Simulation:
    """A trace, and what replays of it share: sizes of requests, first requests, and the forecast."""

    def __init__(self, trace: Trace, *, scores: Array | None = None) -> None:
        self.trace = trace
        self._scores = scores

    @cached_property
    def periods(self) -> Array:
        """int32: the day of each request."""
        return forecast.number_days(self.trace.times_ms)

    @cached_property
    def scores(self) -> Array:
        """float64 [days, objects]: the forecast that was given, else one learned from
        the trace's own past.
        """
        if self._scores is not None:
            return self._scores
        days, count = int(self.periods[-1]) + 1, len(self.trace.sizes)
        if days * count > _MOST_SCORES:
            raise DataError(
                "a learned policy needs a score for each object and day, and they do not fit into memory",
                found=f"{days:,} days, {count:,} objects",
                next_step="choose other policies, fewer days, or --sample 0.1",
            )
        return forecast.learned_scores(self.trace.objects, self.periods, len(self.trace.sizes))

    def hits(self, policy: str, capacity: int) -> Array:
        """Return uint8, 1 where a request hits. Raises UsageError (2) for another name."""
        return self._hits(policy, capacity)[0]

    def _hits(self, policy: str, capacity: int) -> tuple[Array, float | None]:
        """Return the hits, and the share of requests before which scores decided; None
        where nothing else may.
        """
        check_policies([policy])
        trace = self.trace
        arguments = (trace.objects, trace.sizes, capacity)
        if policy in PLAIN:
            return PLAIN[policy](*arguments), None
        if policy == "decayed":
            return policies.decayed(*arguments, trace.times_ms, _HALF_LIFE_MS), None
        if policy in ("protected", "protected-half"):
            popular = (self.scores >= POPULAR_SHARE).astype(np.uint8)
            share = 1.0 if policy == "protected" else 0.5
            return protected_lru(*arguments, self.periods, popular, share), None
        is_by_bytes = policy == "learned"
        scores = self.scores if is_by_bytes else self.scores / trace.sizes
        costs = trace.sizes if is_by_bytes else np.ones_like(trace.sizes)
        hits, is_scored = least_score_or_lru(*arguments, self.periods, scores, costs)
        return hits, float(is_scored.mean())

    def replay(self, policy: str, capacity: int) -> Replay:
        """Return what the policy misses in a cache of that many bytes, cold at the start."""
        trace = self.trace
        hits, share = self._hits(policy, capacity)
        admitted = capacity * _ADMITTED.get(policy, 1.0)
        reads = np.zeros(0, np.int64) if trace.reads is None else trace.reads
        counts = sums(trace.objects, trace.sizes, capacity, admitted, hits, reads)
        return Replay(policy, capacity, *counts, share)

    def compare(
        self,
        names: Sequence[str],
        capacities: Sequence[int],
        *,
        threads: int = 2,
        with_bound: bool = False,
    ) -> list[Comparison]:
        """Return all policies at all sizes, with LRU and, ``with_bound``, the bound of each size."""
        if any(name in WITH_SCORES for name in names):
            _ = self.scores, self.periods
        pairs = [
            (name, capacity) for capacity in capacities for name in dict.fromkeys(("lru", *names))
        ]
        with ThreadPoolExecutor(threads) as pool:
            replays = list(pool.map(lambda pair: self.replay(*pair), pairs))
            floors = (
                dict(zip(capacities, pool.map(self._bound, capacities), strict=True))
                if with_bound
                else {}
            )
        lru = {replay.capacity: replay for replay in replays if replay.policy == "lru"}
        unknown = (None, None)
        return [
            Comparison(replay, lru[replay.capacity], *floors.get(replay.capacity, unknown))
            for replay in replays
            if replay.policy in names
        ]

    def _bound(self, capacity: int) -> tuple[float, float]:
        trace = self.trace
        misses, missed = (
            least_misses(trace.objects, trace.sizes, capacity, in_bytes=in_bytes)
            for in_bytes in (False, True)
        )
        if trace.reads is not None:
            requested = trace.sizes[trace.objects]
            repeated = np.where(requested > capacity, trace.reads - 1, 0)
            misses += float(repeated.sum())
            missed += float((repeated * requested).sum())
        return misses, missed


@dataclass(frozen=True)
class Comparison:
    """A replay beside LRU and the bound: no policy misses fewer than ``least_misses``,
    ``least_missed_bytes``; None where no bound was asked for.
    """

    replay: Replay
    lru: Replay
    least_misses: float | None
    least_missed_bytes: float | None

    @property
    def gap_closed(self) -> float | None:
        """The share of the bytes between LRU and the bound that the policy does not
        miss; None without a gap.
        """
        if self.least_missed_bytes is None:
            return None
        gap = self.lru.missed_bytes - self.least_missed_bytes
        return (self.lru.missed_bytes - self.replay.missed_bytes) / gap if gap > 0 else None

    @property
    def against_lru(self) -> float:
        """Missed bytes against those of LRU: −0.2 is a fifth fewer."""
        return self.replay.missed_bytes / self.lru.missed_bytes - 1

    def as_dict(self) -> dict[str, Any]:
        """Return the replay's numbers, and those against LRU and the bound."""
        least = self.least_missed_bytes
        bound = None if least is None else least / self.replay.requested_bytes
        return {
            **self.replay.as_dict(),
            "least_byte_miss_ratio": bound,
            "bytes_against_lru": self.against_lru,
            "gap_closed": self.gap_closed,
        }


def too_large_share(trace: Trace, policy: str, capacity: int) -> float:
    """Return the share of a sample's requests of objects that the policy would admit to
    the whole cache, and does not admit to its share of ``capacity`` bytes in the
    sample.
    """
    requested, most = trace.sizes[trace.objects], capacity * _ADMITTED.get(policy, 1.0)
    return float(((requested > most) & (requested <= most / trace.sample)).mean())


def sampling_error(trace: Trace, policy: str, capacity: int) -> float:
    """Return the standard error of the byte miss ratio that comes from sampling
    objects, from four disjoint parts of the sample; NaN where it is not known: of too
    few objects, and where the parts miss more than a hundredth of the requests alike,
    as their caches are too small for the objects.
    """
    ratios, groups = [], 4
    if (
        too_large_share(replace(trace, sample=trace.sample / groups), policy, capacity // groups)
        > 0.01
    ):
        return float("nan")
    for group in range(groups):
        chosen = np.nonzero(np.arange(len(trace.sizes)) % groups == group)[0]
        number_of = np.full(len(trace.sizes), -1, np.int32)
        number_of[chosen] = np.arange(len(chosen))
        objects = number_of[trace.objects]
        is_kept = objects >= 0
        if is_kept.any():
            part = Trace(objects[is_kept], trace.times_ms[is_kept], trace.sizes[chosen])
            ratios.append(
                Simulation(part).replay(policy, max(capacity // groups, 1)).byte_miss_ratio
            )
    return float(np.std(ratios, ddof=1) / len(ratios) ** 0.5) if len(ratios) > 1 else float("nan")
