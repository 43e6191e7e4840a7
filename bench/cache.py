"""Replays against libCacheSim: ``python -m bench.cache`` from the top of a checkout.

One made trace, one core, each policy by turns with the C library through its own reader
of the same oracleGeneral file; prints requests a second of both, the ratio of the
medians, and whether both miss the same requests. Needs the packages numba and
libcachesim (GPL: for this comparison only).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cmsspark.apps.cache.replay import PLAIN
from cmsspark.apps.cache.trace import read_trace

PEERS = {
    "lru": "LRU",
    "fifo": "FIFO",
    "sieve": "Sieve",
    "s3fifo": "S3FIFO",
    "gdsf": "GDSF",
    "lfu": "LFU",
    "arc": "ARC",
    "slru": "SLRU",
    "2q": "TwoQ",
    "lirs": "LIRS",
}
#: Learned policies that only the library has: their misses beside ours.
ONLY_PEERS = {"3l-cache": "ThreeLCache", "lrb": "LRB"}
_PEER = """
import sys, time
import libcachesim as peer
path, name, capacity, power = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
reader = peer.TraceReader(trace=path, trace_type=peer.TraceType.ORACLE_GENERAL_TRACE)
cache = getattr(peer, name)(cache_size=capacity, hashpower=power)
began = time.perf_counter()
misses, _ = cache.process_trace(reader)
print("RESULT", time.perf_counter() - began, misses)
"""


def make(path: Path, requests: int, seed: int = 7) -> None:
    """A trace of Zipf-distributed requests of a tenth as many objects, with log-normal sizes."""
    generator = np.random.default_rng(seed)
    objects = requests // 10
    weights = 1 / np.arange(1, objects + 1) ** 0.9
    chosen = np.searchsorted(np.cumsum(weights) / weights.sum(), generator.random(requests))
    sizes = np.clip(np.exp(generator.normal(9, 1.2, objects)), 64, 4e9)
    rows = np.zeros(
        requests, [("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")]
    )
    rows["time"] = np.arange(requests) // 100
    rows["object"], rows["size"], rows["next"] = chosen + 1, sizes[chosen], -2
    path.write_bytes(rows.tobytes())


def peer(path: Path, name: str, capacity: int) -> tuple[float, float]:
    """(seconds, miss ratio) of the library, in a process of its own."""
    command = [sys.executable, "-c", _PEER, str(path), name, str(capacity), "21"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    _, seconds, misses = next(
        line for line in run.stdout.splitlines() if line.startswith("RESULT")
    ).split()
    return float(seconds), float(misses)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=float, default=10, help="millions of requests")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the medians count")
    parser.add_argument(
        "--share", type=float, default=0.1, help="size of the cache, as a share of all objects"
    )
    parser.add_argument("--policies", default="lru,fifo,sieve,s3fifo,gdsf,lfu,arc,slru,2q,lirs")
    parser.add_argument("--learned", action="store_true", help="also 3L-Cache and LRB (minutes)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.oracleGeneral"
        make(path, int(chosen.requests * 1e6))
        began = time.perf_counter()
        trace = read_trace(path)
        print(
            f"read and numbered once in {time.perf_counter() - began:.1f} s; the library reads in each replay"
        )
        capacity = int(trace.footprint * chosen.share)
        print(
            f"{len(trace.objects):,} requests of {len(trace.sizes):,} objects, cache {chosen.share:.0%} of their bytes"
        )
        print(
            f"{'policy':8} {'cmsspark M/s':>13} {'libCacheSim M/s':>16} {'time ratio':>11}  same misses"
        )
        for name in chosen.policies.split(","):
            replay = PLAIN[name]
            replay(trace.objects[:1000], trace.sizes, capacity)
            ours, theirs, misses = [], [], 0.0
            for _ in range(chosen.repeats):
                began = time.perf_counter()
                hits = replay(trace.objects, trace.sizes, capacity)
                ours.append(time.perf_counter() - began)
                seconds, misses = peer(path, PEERS[name], capacity)
                theirs.append(seconds)
            own, other = statistics.median(ours), statistics.median(theirs)
            millions = len(trace.objects) / 1e6
            same = (
                "yes"
                if abs((hits == 0).mean() - misses) < 1e-9
                else f"NO: {(hits == 0).mean():.6f} {misses:.6f}"
            )
            print(
                f"{name:8} {millions / own:13.1f} {millions / other:16.1f} {own / other:11.2f}  {same}"
            )
        for name, peer_name in ONLY_PEERS.items() if chosen.learned else ():
            seconds, misses = peer(path, peer_name, capacity)
            print(
                f"{name:8} {'':13} {len(trace.objects) / 1e6 / seconds:16.1f} {'':11}  {misses:.6f}"
            )


if __name__ == "__main__":
    main()
