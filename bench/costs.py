"""What jobs cost, at scale: ``python -m bench.costs [MILLIONS]`` from the top of a checkout.

Makes a day of so many millions of HTCondor's records (10 without a number), counts it
by ``job_efficiency`` and by DuckDB on the same files, and compares cells of
job_efficiency and running_cores.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import duckdb

from bench import condor_day
from bench.condor_day import DAY
from bench.daily import Bench, run_spark

_COMPARED = {
    "job_efficiency": (
        "type",
        "workflow",
        "site",
        "outcome",
        "job_count",
        "cpu_ms",
        "core_ms",
        "last_core_ms",
        "distinct_users",
    ),
    "running_cores": ("site", "subsite", "type", "hour", "core_windows_milli", "job_windows"),
}


def difference(store: Path, table: str, peer: Path) -> int:
    """Return the number of rows that only one of the two has."""
    (part,) = (store / "job_efficiency" / DAY.isoformat() / "runs").glob(f"*/{table}")
    columns = ", ".join(_COMPARED[table])
    ours = f"SELECT {columns} FROM '{part}/*.parquet'"
    theirs = f"SELECT {columns} FROM '{peer}/{table}.parquet'"
    query = f"SELECT count(*) FROM (({ours} EXCEPT ALL {theirs}) UNION ALL ({theirs} EXCEPT ALL {ours}))"
    return int(duckdb.sql(query).fetchall()[0][0])


def main() -> None:
    """Measure each once, and print the costs."""
    records = round(float(sys.argv[1] if len(sys.argv) > 1 else 10) * 1e6)
    cache = Path.home() / ".cache/cmsspark/bench"
    bench = Bench(cache / "work", len(os.sched_getaffinity(0)))
    root = str(condor_day.provide(records, cache, bench.cpus))
    store, peer = bench.store("job_efficiency"), bench.place / "duckdb"
    for folder in (store, peer):
        shutil.rmtree(folder, ignore_errors=True)
    peer.mkdir()
    words = ["--date", DAY.isoformat(), "--root", root, "--fout", str(store)]
    peers_words = [root, DAY.isoformat(), str(peer), str(bench.cpus)]
    costs = {
        "job_efficiency": bench.run("job_efficiency", [*run_spark(), "job_efficiency", *words]),
        "duckdb": bench.run(
            "duckdb", [sys.executable, "-m", "bench.peers.costs_with_duckdb", *peers_words]
        ),
    }
    for name, cost in costs.items():
        memory = f"{cost.peak_bytes / 1e6:7.0f} MB at a load of {cost.load:.1f}"
        print(f"{name:16} {cost.wall_s:7.1f} s wall {cost.cpu_s:7.1f} s CPU {memory}")
    for table in _COMPARED:
        rows = difference(store, table, peer)
        print(f"{table}: {rows} rows differ" if rows else f"{table}: the same cells")


if __name__ == "__main__":
    main()
