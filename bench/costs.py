"""What jobs cost, at scale: ``python -m bench.costs ROOT DAY WORK``.

Counts the HTCondor records of a day below ROOT by ``dbs_condor`` and by ``job_efficiency``, beside DuckDB on the same
files, and compares the sums of job_efficiency and running_cores with DuckDB's.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import date
from pathlib import Path

import duckdb

from bench.daily import Bench, run_spark

_COMPARED = {
    "job_efficiency": ("type", "workflow", "site", "outcome", "job_count", "cpu_ms", "core_ms", "distinct_users"),
    "running_cores": ("site", "subsite", "type", "hour", "core_windows_milli", "job_windows"),
}


def difference(store: Path, day: str, table: str, peer: Path) -> int:
    """Rows that only one of the two has."""
    (part,) = (store / "job_efficiency" / day / "runs").glob(f"*/{table}")
    columns = ", ".join(_COMPARED[table])
    ours = f"SELECT {columns} FROM '{part}/*.parquet'"
    theirs = f"SELECT {columns} FROM '{peer}/{table}.parquet'"
    query = f"SELECT count(*) FROM (({ours} EXCEPT ALL {theirs}) UNION ALL ({theirs} EXCEPT ALL {ours}))"
    return int(duckdb.sql(query).fetchall()[0][0])


def main() -> None:
    """Measure each once, and print the costs."""
    root, day, work = sys.argv[1:]
    date.fromisoformat(day)
    bench = Bench(Path(work), len(os.sched_getaffinity(0)))
    peer = bench.place / "duckdb"
    shutil.rmtree(peer, ignore_errors=True)
    peer.mkdir()
    costs = {}
    for job in ("dbs_condor", "job_efficiency"):
        store = bench.store(job)
        shutil.rmtree(store, ignore_errors=True)
        words = ["--date", day, "--root", root, "--fout", str(store), "--max-malformed", "100%"]
        costs[job] = bench.run(job, [*run_spark(), job, *words])
    words = [sys.executable, "-m", "bench.peers.costs_with_duckdb", root, day, str(peer), str(bench.cpus)]
    costs["duckdb"] = bench.run("duckdb", words)
    for name, cost in costs.items():
        print(f"{name:16} {cost.wall_s:7.1f} s wall {cost.cpu_s:7.1f} s CPU {cost.peak_bytes / 1e6:7.0f} MB")
    for table in _COMPARED:
        rows = difference(bench.store("job_efficiency"), day, table, peer)
        print(f"{table}: {rows} rows differ" if rows else f"{table}: the same cells")


if __name__ == "__main__":
    main()
