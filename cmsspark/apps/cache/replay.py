"""Replays of a trace: each policy by its name, what it missed, and how far it is from
LRU and from the bound.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import asdict

from cmsspark.apps.cache import policies, scored, segmented
from cmsspark.apps.cache.trace import MOST_BYTES, Trace
from cmsspark.base.arrays import Array, Ints, Longs, jit
from cmsspark.base.entry_points import with_packages
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.text.sizes import parse_bytes

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
#: The policy that learns from days of datasets: stored days have it, files do not.
LEARNED: Final = "learned"
NAMES: Final = (*PLAIN, "decayed", LEARNED)
#: A request counts half after so many milliseconds in the policy ``decayed``: two days.
_HALF_LIFE_MS: Final = 2.0 * scored.DAY_MS
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
    **{
        name: (inspect.getdoc(policy) or "").partition("\n")[0].rstrip(".")
        for name, policy in PLAIN.items()
        if name not in _BUILT_IN
    },
}
#: Scores of all days and objects of a trace: 8 GB.
_MOST_SCORES: Final = 10**9


def check_policies(names: Iterable[str]) -> None:
    """Raise UsageError (2) for a name of no policy."""
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"there is no policy {name!r}", next_step=f"one of {', '.join(NAMES)}"
            )


class Replay(msgspec.Struct, frozen=True):
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
    """A trace, and what replays of it share: the day of each request, and the scores of
    each day and object, learned from the trace's own past.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def periods(self) -> Array:
        """int32: the day of each request."""
        return scored.number_days(self.trace.times_ms)

    @cached_property
    def scores(self) -> Array:
        """float64 [days, objects]."""
        days, count = int(self.periods[-1]) + 1, len(self.trace.sizes)
        if days * count > _MOST_SCORES:
            raise DataError(
                "a learned policy needs a score for each object and day, and they do not fit into memory",
                found=f"{days:,} days, {count:,} objects",
                next_step="choose other policies, or fewer days",
            )
        return scored.learned_scores(self.trace.objects, self.periods, count)

    def hits(self, policy: str, capacity: int) -> tuple[Array, float | None]:
        """Return uint8, 1 where a request hits, and the share of requests before which
        scores decided, None where nothing else may. Raises UsageError (2) for another
        name.
        """
        check_policies([policy])
        trace = self.trace
        arguments = (trace.objects, trace.sizes, capacity)
        if policy in PLAIN:
            return PLAIN[policy](*arguments), None
        if policy == "decayed":
            return policies.decayed(*arguments, trace.times_ms, _HALF_LIFE_MS), None
        hits, is_scored = scored.least_score_or_lru(
            *arguments, self.periods, self.scores, trace.sizes
        )
        return hits, float(is_scored.mean())

    def replay(self, policy: str, capacity: int) -> Replay:
        """Return what the policy misses in a cache of that many bytes, cold at the start."""
        trace = self.trace
        hits, share = self.hits(policy, capacity)
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
        if LEARNED in names:
            _ = self.scores
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


class Comparison(msgspec.Struct, frozen=True):
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


# Sizes of caches: as people write them, and the least one that reaches a target.

_SHARE: Final = re.compile(r"\d+(\.\d+)? ?%")
#: How close a size found by replays is to the least one: a hundredth.
_TOLERANCE: Final = 0.01


def parse_size(text: str, footprint: int) -> int:
    """Return bytes of ``500GB``, ``1.5TB``, ``2TiB``, ``1000`` or ``20%`` of the
    footprint. Raises UsageError (2).
    """
    stripped = text.strip()
    if stripped.endswith("%") and _SHARE.fullmatch(stripped):
        number = float(stripped.rstrip("% "))
        # A small share of a few bytes is a byte.
        size = max(number / 100 * footprint, float(number > 0))
    else:
        size = parse_bytes(text, "such as 500GB, 1.5TB or 20% of the bytes of all objects")
    if size < 1:
        raise UsageError(f"a cache of {text} holds nothing", next_step="give at least one byte")
    if size > MOST_BYTES:
        raise UsageError(
            f"a cache of {text} is beyond 64 bits", next_step="give at most 2000000000 GB"
        )
    return int(size)


def least_capacity(trace: Trace, target: float, policy: str = "lru") -> int | None:
    """Return the least cache, in bytes, in which the policy misses at most ``target``
    of the requested bytes; None where even an infinite cache misses more.

    Found by bisection to a hundredth: misses need not fall with the size, so a smaller
    cache may reach the target, too.
    Raises UsageError (2) for another policy.
    """
    check_policies([policy])
    simulation = Simulation(trace)
    # 0.29 of 100 bytes are 29.
    least = simulation.replay("lru", 1)
    allowed = math.floor(Fraction(str(target)) * least.requested_bytes)
    if least.compulsory_bytes > allowed:
        return None
    if least.requested_bytes <= allowed:
        return 1
    low, high = 0, trace.footprint
    while simulation.replay(policy, high).missed_bytes > allowed:
        # S3-FIFO does not admit what is larger than a tenth of the cache.
        low, high = high, 2 * high
        if high > MOST_BYTES:
            return None
    while high - low > max(_TOLERANCE * high, 1):
        middle = (low + high) // 2
        if simulation.replay(policy, middle).missed_bytes <= allowed:
            high = middle
        else:
            low = middle
    return high
