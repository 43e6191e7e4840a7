"""The learned policy falls back to LRU; decayed frequency; files of XCache; large traces."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cmsspark.apps.cache import policies, scored
from cmsspark.apps.cache.cli import command
from cmsspark.apps.cache.replay import Simulation
from cmsspark.apps.cache.trace import Trace, make_trace, read_trace
from cmsspark.base import errors

Array = np.ndarray[Any, Any]
DAY_MS = 86_400_000


def bursts(seed: int, days: int = 60, count: int = 250) -> tuple[Array, Array]:
    """Objects that are asked for in a few short bursts, which no past frequency announces."""
    generator = np.random.default_rng(seed)
    objects, times = [], []
    for item in range(count):
        for _ in range(generator.poisson(1.5)):
            gaps = generator.exponential(0.7 * DAY_MS, generator.integers(1, 20))
            at = generator.integers(0, days) * DAY_MS + np.cumsum(gaps).astype(np.int64)
            at = at[at < days * DAY_MS]
            objects += [item] * len(at)
            times += at.tolist()
    return np.array(objects), np.array(times, np.int64)


def zipf(seed: int, days: int = 40, count: int = 250) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, count + 1) ** 0.9
    objects = generator.choice(count, days * 120, p=weights / weights.sum())
    return objects, np.sort(generator.integers(0, days * DAY_MS, len(objects)))


def changing(seed: int) -> tuple[Array, Array]:
    """Another order of popularity in the second half."""
    objects, times = zipf(seed)
    half = len(objects) // 2
    return np.append(
        objects[:half], np.random.default_rng(seed).permutation(250)[objects[half:]]
    ), times


def simulation_of(made: tuple[Array, Array], seed: int) -> Simulation:
    sizes = np.exp(np.random.default_rng(seed).normal(20, 1.3, 250)).astype(np.int64) + 1
    objects, times = made
    return Simulation(make_trace(times, objects, sizes[objects]))


SEEDS = range(20)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("make", [bursts, zipf, changing])
def test_the_learned_policy_is_never_much_worse_than_lru(make: Any, share: float) -> None:
    ratios = []
    for seed in SEEDS[::4]:
        simulation = simulation_of(make(seed), seed)
        capacity = int(simulation.trace.footprint * share)
        lru, learned = (
            simulation.replay(name, capacity).missed_bytes for name in ("lru", "learned")
        )
        ratios.append(learned / lru - 1)
    assert np.mean(ratios) <= 0.01 and max(ratios) <= 0.03, ratios


def test_the_learned_policy_keeps_most_of_its_gain() -> None:
    simulation = simulation_of(zipf(1), 1)
    trace = simulation.trace
    capacity = trace.footprint // 20
    pure = scored.least_score(
        trace.objects, trace.sizes, capacity, simulation.periods, simulation.scores
    )
    alone = int(trace.sizes[trace.objects][pure == 0].sum())
    lru, learned = (simulation.replay(name, capacity) for name in ("lru", "learned"))
    assert learned.scored_share is not None and 0 < learned.scored_share < 1
    assert lru.missed_bytes - learned.missed_bytes > 0.8 * (lru.missed_bytes - alone) > 0


def test_without_a_gain_the_learned_policy_is_lru() -> None:
    simulation = simulation_of(bursts(3), 3)
    capacity = simulation.trace.footprint // 2
    lru, learned = (simulation.replay(name, capacity) for name in ("lru", "learned"))
    assert learned.scored_share == 0 and learned.missed_bytes == lru.missed_bytes


def ask(*arguments: object) -> Any:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_decayed_frequency_forgets_and_evicts_the_least() -> None:
    times = np.array([0, 1, 2, 3, 4, 5], np.int64)
    objects, sizes = np.array([0, 0, 1, 2, 0, 1], np.int32), np.ones(3, np.int64)
    assert policies.decayed(objects, sizes, 2, times, 100.0).tolist() == [0, 1, 0, 0, 1, 0], (
        "as LFU"
    )
    assert policies.decayed(objects, sizes, 2, times, 0.1).tolist() == [0, 1, 0, 0, 0, 0], "as LRU"
    lru = policies.lru(objects, sizes, 2)
    assert (policies.decayed(objects, sizes, 2, times, 0.1) == lru).all()


@pytest.mark.parametrize("words", [("compare",), ("size", "--target", "0.5")])
def test_an_unknown_policy_is_refused_before_the_trace_is_read(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    error = ask(words[0], tmp_path / "no-such.csv", *words[1:], "--policy", "lrb").exception
    assert isinstance(error, errors.UsageError) and "there is no policy 'lrb'" in error.text()


def test_no_bound_is_computed_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("time,object,size\n1,a,3\n2,b,3\n3,a,3\n")
    row = json.loads(
        ask("compare", tmp_path / "t.csv", "--policy", "lru", "--size", "5", "--json").stdout
    )[0]
    assert row["least_byte_miss_ratio"] is None and row["gap_closed"] is None
    assert (
        "bound" not in ask("compare", tmp_path / "t.csv", "--policy", "lru", "--size", "5").stdout
    )
    assert (
        "bound"
        in ask("compare", tmp_path / "t.csv", "--policy", "lru", "--size", "5", "--bound").stdout
    )


def record(
    path: str | None, size: int | None, time: int | None, attached: float | None = None
) -> str:
    data = {"file_path": path, "size": size, "attach_time": attached, "site": "T2_X", "other": [1]}
    return json.dumps({"data": data, "metadata": {"timestamp": time, "producer": "x"}})


def test_records_of_xcache_are_requests_of_files(tmp_path: Path) -> None:
    first = [
        record("/store/a", 10, 1767571200000),
        record("/store/b", 20, 1767571100),
        record("/store/a", 10, None),
    ]
    second = [
        record("/store/a", 10, 1767571300000000, 1767571000.5),
        record("/store/c", None, 1767571100),
        "{broken",
    ]
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "part-0.json").write_text("\n".join(first) + "\n\n")
    (tmp_path / "day" / "part-1.json.gz").write_bytes(gzip.compress("\n".join(second).encode()))
    (tmp_path / "day" / "_SUCCESS").write_text("")
    trace = read_trace(tmp_path / "day")
    assert trace.objects.tolist() == [0, 1, 0]
    assert trace.times_ms.tolist() == [1767571000500, 1767571100000, 1767571200000]
    assert trace.sizes.tolist() == [10, 20] and trace.dropped == {"null": 3}
    (tmp_path / "day" / "part-0.json").write_text("no record\n" * 20)
    with pytest.raises(errors.DataError, match="not records of XCache"):
        read_trace(tmp_path / "day")


def test_records_of_xcache_have_the_bytes_of_their_blocks_and_what_the_caches_missed(
    tmp_path: Path,
) -> None:
    """A file of 1,000 bytes of which 3, then 5 blocks of 100 are there; one without blocks."""
    blocks = {"block_size": 100, "numbers_blocks": 10}
    rows = [
        {"file_path": "/store/a", "size": 1000, **blocks, "numbers_blocks_done": 3},
        {"file_path": "/store/a", "size": 1000, **blocks, "numbers_blocks_done": 5},
        {"file_path": "/store/b", "size": 250, **blocks, "numbers_blocks_done": 3},
        {"file_path": "/store/c", "size": 70},
    ]
    served = {"bytes_hit_cache": 60, "bytes_miss_cache": 30, "bytes_bypass_cache": 10}
    lines = [
        json.dumps({"data": {**row, **served, "attach_time": 1767571000 + number}})
        for number, row in enumerate(rows)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.sizes.tolist() == [500, 250, 70] and trace.recorded == (240, 160)
    shown = ask("compare", tmp_path / "t.jsonl", "--size", "1000", "--policy", "lru")
    assert "the caches themselves missed 40" in shown.stderr


def test_the_best_policy_of_each_size_is_named_and_learned_is_not_for_files(
    tmp_path: Path,
) -> None:
    """One object comes back after two others that do not, in a cache of two: LRU lets it go."""
    names = ["hot", *("hot" if number % 3 == 0 else f"o{number}" for number in range(60))]
    rows = [f"{number},{name},10" for number, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("time,object,size\n" + "\n".join(rows) + "\n")
    shown = ask("compare", tmp_path / "t.csv", "--size", "20", "--size", "900").stdout
    best = [line for line in shown.splitlines() if line.startswith("best at")]
    assert len(best) == 2 and not best[0].startswith("best at 20 B: lru,")
    assert "learned" not in shown
    refused = ask("compare", tmp_path / "t.csv", "--policy", "learned").exception
    assert isinstance(refused, errors.UsageError) and "not for files" in refused.text()
    told = json.loads(ask("compare", tmp_path / "t.csv", "--size", "20", "--json").stdout)
    least = min(row["missed_bytes"] for row in told)
    assert [row["missed_bytes"] for row in told if row["is_best"]] == [least]


def test_records_of_xcache_may_be_flat_and_lines_with_absurd_numbers_are_damaged(
    tmp_path: Path,
) -> None:
    flat = {
        "file_path": "/store/a",
        "size": 10,
        "attach_time": 1767571000,
        "metadata": {"timestamp": 1767571300},
    }
    lines = [json.dumps(flat), json.dumps({**flat, "file_path": None, "data": {"size": 5}})]
    lines += [
        json.dumps({**flat, **more})
        for more in ({"size": 10**30}, {"attach_time": 1e300}, {"size": 2**63})
    ]
    lines += [
        json.dumps({**flat, "attach_time": None, "metadata": {"timestamp": -(10**30)}}),
        "{}",
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    trace = read_trace(tmp_path / "t.jsonl")
    assert (trace.sizes.tolist(), trace.times_ms.tolist(), trace.dropped) == (
        [10],
        [1767571000000],
        {"null": 6},
    )
    # A record without a file is no damage.
    (tmp_path / "t.jsonl").write_text("\n".join([lines[0], *lines[1:2] * 20]))
    assert read_trace(tmp_path / "t.jsonl").dropped == {"null": 20}
    (tmp_path / "t.jsonl").write_text("\n".join([lines[0], *["{}"] * 20]))
    with pytest.raises(errors.DataError, match="not records of XCache"):
        read_trace(tmp_path / "t.jsonl")


def test_numbers_of_many_objects_are_those_of_their_first_requests() -> None:
    generator = np.random.default_rng(1)
    names = generator.integers(0, 2**64 - 1, 100_000, dtype=np.uint64)[
        generator.integers(0, 100_000, 300_000)
    ]
    times = np.sort(generator.integers(0, 10**9, 300_000))
    trace = make_trace(times, names, np.ones(300_000, np.int64))
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    assert (trace.objects == rank[inverse]).all()


_LARGE = """
import resource, sys, numpy as np
from click.testing import CliRunner
from cmsspark.apps.cache.cli import command
done = CliRunner().invoke(command, ["compare", sys.argv[1], "--policy", "lru", "--size", "10%"])
assert done.exit_code == 0, done
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


@pytest.mark.long
def test_fifty_million_requests_are_replayed_by_lru_within_three_gigabytes(tmp_path: Path) -> None:
    from bench.cache import make

    make(tmp_path / "large.oracleGeneral", 50_000_000)
    run = [sys.executable, "-c", _LARGE, str(tmp_path / "large.oracleGeneral")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=1200)
    assert float(done.stdout) < 3


def test_decayed_frequency_is_replayed_by_its_name() -> None:
    trace = Trace(np.array([0, 1, 0], np.int32), np.arange(3), np.array([2, 3], np.int64))
    assert Simulation(trace).replay("decayed", 5).misses == 2
