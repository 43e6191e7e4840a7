"""Cache policies: by hand, against plain Python, against each other, and request for
request against libCacheSim.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cmsspark.apps.cache import replay as cache_replay
from cmsspark.apps.cache import scored
from cmsspark.apps.cache.replay import NAMES, PLAIN, Simulation
from cmsspark.apps.cache.trace import Trace, make_trace

Array = np.ndarray[Any, Any]


def trace_of(objects: list[int] | Array, sizes: list[int] | Array) -> Trace:
    numbers = np.asarray(objects, np.int32)
    return Trace(numbers, np.arange(len(numbers), dtype=np.int64), np.asarray(sizes, np.int64))


def random_trace(seed: int, *, requests: int = 3000, unit: bool = False) -> Trace:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(5, 300))
    objects = np.minimum(generator.zipf(1.2, requests) - 1, count - 1)
    if seed % 2:
        objects = generator.integers(0, count, requests)
    sizes = np.ones(count) if unit else np.exp(generator.normal(5, 1.5, count)) + 1
    return trace_of(objects.astype(np.int32), sizes.astype(np.int64))


HAND = {
    # objects a=0, b=1, c=2 of one byte in a cache of two bytes
    "fifo": ([0, 1, 0, 2, 0], [0, 0, 1, 0, 0]),
    "lru": ([0, 1, 0, 2, 0, 1], [0, 0, 1, 0, 1, 0]),
    "lfu": ([0, 0, 1, 2, 0, 1], [0, 1, 0, 0, 1, 0]),
    "sieve": ([0, 1, 0, 2, 0, 1], [0, 0, 1, 0, 1, 0]),
}


@pytest.mark.parametrize("name", HAND)
def test_traces_by_hand(name: str) -> None:
    objects, hits = HAND[name]
    trace = trace_of(objects, [1, 1, 1])
    assert PLAIN[name](trace.objects, trace.sizes, 2).tolist() == hits


#: Policies that admit a hundredth of the cache only.
_SMALL = ("lirs", "w-tinylfu")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in _SMALL])
def test_an_object_larger_than_the_cache_passes_by(name: str) -> None:
    trace = trace_of([0, 1, 0, 1, 0, 1] * 3, [100, 3])
    hits = Simulation(trace).hits(name, 50)[0]
    assert not hits[trace.objects == 0].any()
    assert hits[trace.objects == 1].sum() == 8, "the small object stays"


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_that_holds_all_misses_first_requests_only(name: str) -> None:
    trace = random_trace(4)
    # W-TinyLFU admits what fits into a hundredth of the cache.
    replay = Simulation(trace).replay(name, trace.footprint * 120)
    assert (replay.misses, replay.missed_bytes) == (replay.compulsory, replay.compulsory_bytes)


def plain_lru(trace: Trace, capacity: int) -> Array:
    cache: OrderedDict[int, int] = OrderedDict()
    hits = []
    for item in trace.objects.tolist():
        size = int(trace.sizes[item])
        hits.append(item in cache)
        if item in cache:
            cache.move_to_end(item)
        elif size <= capacity:
            while sum(cache.values()) + size > capacity:
                cache.popitem(last=False)
            cache[item] = size
    return np.array(hits)


@pytest.mark.parametrize("seed", range(4))
def test_lru_equals_an_ordered_dict(seed: int) -> None:
    trace = random_trace(seed, requests=800)
    for share in (0.05, 0.3, 0.8):
        capacity = int(trace.footprint * share)
        assert (Simulation(trace).hits("lru", capacity)[0] == plain_lru(trace, capacity)).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_larger_lru_has_all_hits_of_a_smaller_one(seed: int) -> None:
    trace = random_trace(seed, unit=True)
    hits = [Simulation(trace).hits("lru", slots)[0] for slots in (1, 2, 5, 20, 100)]
    assert all((small <= large).all() for small, large in itertools.pairwise(hits))


def best_of_all(trace: Trace, capacity: int, *, in_bytes: bool) -> int:
    """The fewest misses of any policy that may also not admit: by trying every cache content."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for item in trace.objects.tolist():
        size = int(trace.sizes[item])
        following: dict[frozenset[int], int] = {}
        for cached, cost in states.items():
            paid = cost + (0 if item in cached else size if in_bytes else 1)
            reachable = cached | {item}
            for count in range(len(reachable) + 1):
                for kept in itertools.combinations(sorted(reachable), count):
                    if sum(int(trace.sizes[each]) for each in kept) <= capacity:
                        content = frozenset(kept)
                        following[content] = min(following.get(content, paid), paid)
        states = following
    return min(states.values())


@pytest.mark.parametrize("seed", range(6))
def test_bounds_are_below_the_best_of_all(seed: int) -> None:
    generator = np.random.default_rng(seed)
    objects = generator.integers(0, 5, 14)
    unit = trace_of(objects, [1] * 5)
    for slots in (1, 2, 3):
        best = best_of_all(unit, slots, in_bytes=False)
        assert all(Simulation(unit).replay(name, slots).misses >= best for name in PLAIN)
    sized = trace_of(objects, generator.integers(1, 9, 5))
    for capacity in (4, 9, 14):
        for in_bytes in (False, True):
            least = cache_replay.least_misses(
                sized.objects, sized.sizes, capacity, in_bytes=in_bytes
            )
            assert least <= best_of_all(sized, capacity, in_bytes=in_bytes) + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_no_policy_is_below_the_bound(seed: int) -> None:
    simulation = Simulation(random_trace(seed))
    capacities = [int(simulation.trace.footprint * share) for share in (0.02, 0.2, 0.6)]
    for each in simulation.compare(NAMES, capacities, with_bound=True):
        assert each.least_missed_bytes is not None and each.least_misses is not None
        assert each.least_missed_bytes <= each.replay.missed_bytes
        assert each.least_misses <= each.replay.misses


def test_compiled_and_plain_python_agree() -> None:
    trace = random_trace(8, requests=600)
    capacity = trace.footprint // 5
    simulation = Simulation(trace)
    for name, policy in PLAIN.items():
        plain: Callable[..., Array] = getattr(policy, "py_func", policy)
        assert (
            plain(trace.objects, trace.sizes, capacity) == simulation.hits(name, capacity)[0]
        ).all(), name


def test_a_forecast_never_looks_ahead() -> None:
    generator = np.random.default_rng(3)
    objects = generator.integers(0, 40, 4000).astype(np.int32)
    periods = np.sort(generator.integers(0, 30, 4000)).astype(np.int32)
    whole = scored.learned_scores(objects, periods, 40)
    for day in (1, 8, 20, 29):
        is_before = periods < day
        last = np.append(periods[is_before], np.int32(day))
        cut = scored.learned_scores(np.append(objects[is_before], np.int32(0)), last, 40)
        assert (cut[: day + 1] == whole[: day + 1]).all(), "later requests change nothing"


def test_perfect_scores_beat_lru() -> None:
    trace = random_trace(2, unit=True)
    count = len(trace.sizes)
    periods = np.zeros(len(trace.objects), np.int32)
    uses = np.bincount(trace.objects, minlength=count).astype(float)
    hits = scored.least_score(trace.objects, trace.sizes, 10, periods, uses[None, :])
    assert hits.sum() > Simulation(trace).hits("lru", 10)[0].sum()


_PEER = """
import json, sys
import libcachesim as peer
name, capacity, objects, sizes = json.load(sys.stdin)
cache = getattr(peer, name)(cache_size=capacity, hashpower=12)
request, hits = peer.Request(), []
for item in objects:
    request.obj_id, request.obj_size = item + 1, sizes[item]
    hits.append(int(cache.get(request)))
print(json.dumps(hits))
"""
PEERS = {
    "fifo": "FIFO",
    "lru": "LRU",
    "lfu": "LFU",
    "gdsf": "GDSF",
    "sieve": "Sieve",
    "s3fifo": "S3FIFO",
    "arc": "ARC",
    "slru": "SLRU",
    "2q": "TwoQ",
    "lirs": "LIRS",
    "w-tinylfu": "WTinyLFU",
}


@pytest.mark.parametrize("name", PEERS)
def test_requests_hit_as_in_libcachesim(name: str) -> None:
    pytest.importorskip("libcachesim")
    for seed in (0, 1, 2):
        trace = random_trace(seed, unit=seed == 2)
        capacity = int(trace.footprint * (0.05, 0.2, 0.5)[seed]) + 12
        asked = json.dumps([PEERS[name], capacity, trace.objects.tolist(), trace.sizes.tolist()])
        # A process of its own with an end: that library is known to end its process.
        run = subprocess.run(
            [sys.executable, "-c", _PEER],
            input=asked,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        assert Simulation(trace).hits(name, capacity)[0].tolist() == json.loads(
            run.stdout.splitlines()[-1]
        ), seed


def test_repeated_reads_of_a_day_hit_what_the_cache_admitted() -> None:
    """Two days of object 0 (10 bytes, read 3 and 2 times) around one of object 1 (100)."""
    trace = replace(trace_of([0, 1, 0], [10, 100]), reads=np.array([3, 4, 2]))
    replay = Simulation(trace).replay("lru", 50)
    assert (replay.requests, replay.misses, replay.bypassed) == (9, 1 + 4, 4)
    assert (replay.requested_bytes, replay.missed_bytes) == (50 + 400, 10 + 400)
    small = Simulation(trace).replay("s3fifo", 50)
    assert small.misses == 9, "S3-FIFO admits a tenth of the cache"
    (bound,) = Simulation(trace).compare(["lru"], [50], with_bound=True)
    assert bound.least_misses is not None and bound.least_misses <= replay.misses
    assert bound.least_missed_bytes == 410


def test_a_trace_orders_requests_and_counts_what_it_drops() -> None:
    times = np.array([3, 1, 2, 1], np.int64)
    trace = make_trace(times, np.array(["b", "a", "a", "c"]), np.array([5, 7, 8, 0], np.int64))
    assert trace.objects.tolist() == [0, 0, 1] and trace.sizes.tolist() == [7, 5]
    assert (trace.dropped, trace.resized, trace.footprint) == ({"no_size": 1}, 1, 12)
