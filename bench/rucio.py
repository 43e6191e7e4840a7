"""``rucio_daily`` beside Polars on the same dump of Rucio: ``python -m bench.rucio``
from the top of a checkout.

Makes a dump with about three replicas of each file, runs the job by ``run_spark``
(processes) and by Polars in turns, each in a process of its own with the same cores,
compares every cell and prints medians and ratios. Ends with 1 where anything differs or
fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from bench import report
from bench.daily import Bench, run_spark
from bench.meter import Cost
from cmsspark.base.dates import start_ms

DAY: Final = date(2026, 1, 15)
DAY_MS: Final = start_ms(DAY)
_COLUMNS: Final = (
    *(
        "rse",
        "site_name",
        "kind",
        "dataset_name",
        "file_count",
        "bytes",
        "new_file_count",
        "new_bytes",
    ),
    *("accessed_file_count", "last_access_ms"),
)


def provide(root: Path, files: int) -> Path:
    """A dump of about so many files under ``root``, made where it is not there; its folder."""
    from cmsspark.apps.demo.world import make_world
    from cmsspark.apps.demo.write_rucio import TABLES, rucio_folder, write_rucio_table

    after = date(2026, 1, 16)
    folder = rucio_folder(root, after)
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        print(f"making a dump of {files:,} files, once: some minutes a million", flush=True)
        world = make_world(
            np.random.default_rng(7), datasets=max(50, files // 200), files=files, people=10
        )
        for name in TABLES:
            write_rucio_table(world, root, after, codec="snappy", name=name)
            print(f"  {name}", flush=True)
        (root / "made").touch()
    for path in folder.rglob("*.avro"):
        path.read_bytes()  # both read from memory
    return folder


def ours(bench: Bench, root: Path) -> Cost:
    """The job as users run it."""
    words = [
        "--date",
        DAY.isoformat(),
        "--root",
        str(root),
        "--fout",
        str(bench.store("processes")),
    ]
    return bench.run(
        "processes", [*run_spark(), "rucio_daily.py", "--engine", "processes", *words]
    )


def peer(bench: Bench, dump: Path) -> Cost:
    """Polars' process, from its start to its written table."""
    out = bench.place / "polars.parquet"
    return bench.run(
        "polars", [sys.executable, "-m", "bench.peers.rucio_with_polars", str(dump), str(out)]
    )


def difference(bench: Bench) -> str:
    """What differs, or nothing."""
    day = bench.store("processes") / "rucio_daily" / DAY.isoformat()
    run = day / "runs" / json.loads((day / "CURRENT").read_text())["run"] / "rucio_daily"
    ours, theirs = (
        pl.read_parquet(source).select(_COLUMNS).sort(_COLUMNS[:4])
        for source in (f"{run}/*.parquet", bench.place / "polars.parquet")
    )
    return (
        ""
        if ours.equals(theirs)
        else f"{ours.height} rows of ours, {theirs.height} of Polars, and they differ"
    )


def line(name: str, costs: Sequence[Cost]) -> str:
    """Medians of an engine."""
    wall, cpu = (
        statistics.median(getattr(cost, figure) for cost in costs)
        for figure in ("wall_s", "cpu_s")
    )
    peak = max(cost.peak_bytes for cost in costs) / 1e9
    return f"{name:10} wall {wall:7.2f} s   CPU {cpu:7.2f} s   peak {peak:5.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--files", type=float, default=1.0, help="millions of files")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the medians count")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cmsspark/bench")
    chosen = parser.parse_args()
    root = chosen.cache / f"rucio-{chosen.files:g}"
    dump = provide(root, round(chosen.files * 1e6))
    size = sum(
        path.stat().st_size
        for table in ("replicas", "contents")
        for path in (dump / table).glob("*.avro")
    )
    print(
        f"{chosen.files:g} million files, {size / 1e6:,.0f} MB of REPLICAS and CONTENTS",
        flush=True,
    )
    bench = Bench(chosen.cache / "work-rucio", chosen.cpus)
    costs: dict[str, list[Cost]] = {"processes": [], "polars": []}
    for turn in range(chosen.repeats):
        for name, run in (
            ("processes", lambda: ours(bench, root)),
            ("polars", lambda: peer(bench, dump)),
        ):
            costs[name].append(run())
            print(
                f"  {turn + 1}/{chosen.repeats} {name:10} {report.cost(costs[name][-1])}",
                flush=True,
            )
        if problem := difference(bench):
            sys.exit(f"the tables differ: {problem}")
    for name, of_name in costs.items():
        print(line(name, of_name))
    for figure, title in (("wall_s", "wall"), ("cpu_s", "CPU")):
        processes, polars = (
            statistics.median(getattr(cost, figure) for cost in costs[name]) for name in costs
        )
        print(f"{title} processes / polars: {processes / polars:.2f}")
    shutil.rmtree(bench.store("processes"), ignore_errors=True)


if __name__ == "__main__":
    main()
