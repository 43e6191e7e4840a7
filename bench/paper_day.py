"""The paper's day, 130 million records, once: ``python -m bench.paper_day`` from the
top of a checkout.

The day of 8 million records (``bench.daily`` makes it), its part files repeated under
other names by hard links: sixteen times, and a quarter of them once more. So the disk
holds it, and the page cache does too: what is measured is counting, not reading a disk.
The result is checked against those of the 8 million and of the quarter: sums add up
sixteen times and once, users are those of the 8 million. Ends with 1 where a cell
differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import duckdb

from bench import inputs, report
from bench.daily import Bench, arguments, run_spark
from bench.inputs import DAY, Day, Inputs
from bench.meter import Cost
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.registry import STREAMS
from cmsspark.store.results import current

COPIES = 16
BEGIN, END = (
    "<!-- the paper's day: written by bench/paper_day.py -->",
    "<!-- end of the paper's day -->",
)


def linked(day: Inputs, root: Path, copies: int, quarter: bool) -> Inputs:
    """A day with each part of ``day`` ``copies`` times, and a quarter of the parts once
    more; the same dumps.
    """
    shutil.rmtree(root, ignore_errors=True)
    for name, folder in day.folders.items():
        target = root / folder.relative_to(day.root)
        if name not in STREAMS:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(folder)
            continue
        target.mkdir(parents=True)
        parts = sorted(folder.glob("part-*"))
        for copy in range(copies + quarter):
            for part in parts[: len(parts) // 4] if copy == copies else parts:
                os.link(part, target / f"part-{copy:02d}{part.name.removeprefix('part')}")
    return Inputs(day.day, root, day.folders, {}, 0)


def differences(whole: str, once: str, quarter: str) -> list[str]:
    """Cells of the whole day that are not sixteen times those of ``once`` and those of
    ``quarter``.
    """
    sums = ("nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time")
    keys = ("stream", "dataset_name", "site_name", "app")
    added = ", ".join(f"sum({name} * times) AS {name}" for name in sums)
    is_equal = " AND ".join(
        f"(w.{name} IS NOT DISTINCT FROM o.{name} OR abs(w.{name} - o.{name}) <= 1e-6 * abs(o.{name}))"
        for name in (*sums, "distinct_users")
    )
    query = f"""
        WITH o AS (
            SELECT {", ".join(keys)}, {added}, max(distinct_users) AS distinct_users
            FROM (SELECT *, {COPIES} AS times FROM '{once}/*.parquet'
                  UNION ALL BY NAME SELECT *, 1 AS times FROM '{quarter}/*.parquet')
            GROUP BY ALL)
        SELECT coalesce(w.dataset_name, o.dataset_name), w.nacc, o.nacc
        FROM '{whole}/*.parquet' w FULL JOIN o USING ({", ".join(keys)})
        WHERE w.nacc IS NULL OR o.nacc IS NULL OR NOT ({is_equal})
        LIMIT 10"""
    return [
        f"{name}: {day_sum}, wanted {expected}"
        for name, day_sum, expected in duckdb.sql(query).fetchall()
    ]


def run(bench: Bench, day: Inputs, name: str) -> tuple[Cost, str, int]:
    """What it cost to count the day, where its table lies, and its records."""
    store = bench.place / f"store-{name}"
    shutil.rmtree(store, ignore_errors=True)
    cost = bench.run(name, [*run_spark(), *arguments(day, store)])
    result = current(LocalFiles(), str(store), "data_aggregation", "data_aggregation", DAY)
    records = sum(bins["read"] for bins in result.manifest.document["reconciliation"].values())
    print(f"{name}: {records:,} records  {report.cost(cost)}", flush=True)
    return cost, result.path, records


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--records",
        type=float,
        default=8.0,
        help="millions of records in the day that is repeated",
    )
    parser.add_argument("--files", type=int, default=5_000_000, help="files in DBS")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cmsspark/bench")
    parser.add_argument(
        "--doc", type=Path, help="write what was measured between the marks in this file"
    )
    chosen = parser.parse_args()
    bench = Bench(chosen.cache / "work", chosen.cpus)
    day = inputs.provide(Day(round(chosen.records * 1e6), chosen.files), chosen.cache, chosen.cpus)
    inputs.warm(day)
    tables = {}
    for name, copies, quarter in (
        ("quarter", 0, True),
        ("once", 1, False),
        ("whole", COPIES, True),
    ):
        copies_of_day = linked(day, chosen.cache / "paper" / name, copies, quarter)
        cost, tables[name], records = run(bench, copies_of_day, f"paper-{name}")
    problems = differences(tables["whole"], tables["once"], tables["quarter"])
    if problems:
        sys.exit("\n".join(["the paper's day does not add up", *problems]))
    text = (
        f"{records:,} records ({day.log_bytes * (COPIES + 0.25) / 1e9:.0f} GB of logs, from the page cache) on"
        f" {chosen.files:,} files in DBS: **{cost.wall_s / 60:.1f} minutes**, {cost.cpu_s:.0f} CPU s"
        f" ({cost.cpu_s / records * 1e6:.2f} for a million records), {cost.peak_bytes / 1e9:.2f} GB at most;"
        f" load {cost.load:.1f} when it began.\n\n{report.machine(chosen.cpus)}"
    )
    print(text)
    if chosen.doc:
        report.between(chosen.doc, BEGIN, END, text)


if __name__ == "__main__":
    main()
