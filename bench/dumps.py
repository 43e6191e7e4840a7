"""The jobs on dumps against DuckDB: ``python -m bench.dumps`` from the top of a checkout.

Makes dumps of millions of files and runs each job by ``run_spark`` (processes; with
``--engines`` also Spark) and by DuckDB on the same files, in turns, with two threads
each. Checks that both agree in every cell, prints medians and writes them to a file.
Ends with 1 where anything differs or fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from bench import inputs, report
from bench.daily import Bench, run_spark
from bench.inputs import DAY, Day, Inputs
from bench.meter import Cost
from cmsspark.base.schemas import stored_table

JOBS = ("dbs_events", "dbs_phedex", "site_tier_usage", "phedex")
PEER = "duckdb"
BEGIN, END = "<!-- dumps: written by bench/dumps.py -->", "<!-- end of the dumps -->"
_HEAD = (
    "files",
    "job",
    "engine",
    "runs",
    "wall s",
    "CPU s",
    "peak GB",
    "wall / DuckDB",
    "CPU / DuckDB",
    "load",
)
#: Records of the day's logs, which nobody reads here.
_RECORDS = 100_000


@dataclass
class Row:
    """A job on some dumps and what each engine cost, run by run."""

    files: int
    job: str
    costs: dict[str, list[Cost]]

    def median(self, engine: str, figure: Callable[[Cost], float]) -> float:
        """The median of one figure over the runs of an engine."""
        return statistics.median(figure(cost) for cost in self.costs[engine])

    def cells(self, engine: str) -> tuple[str, ...]:
        """A line of the table."""
        wall, cpu = (
            self.median(engine, figure)
            for figure in (lambda run: run.wall_s, lambda run: run.cpu_s)
        )
        ratios = ["", ""]
        if PEER in self.costs and engine != PEER:
            ratios = [
                f"{wall / self.median(PEER, lambda run: run.wall_s):.2f}",
                f"{cpu / self.median(PEER, lambda run: run.cpu_s):.2f}",
            ]
        peak = self.median(engine, lambda run: run.peak_bytes) / 1e9
        load = max(run.load for run in self.costs[engine])
        cells = (f"{self.files / 1e6:g} M", self.job, engine, str(len(self.costs[engine])))
        return (*cells, f"{wall:.2f}", f"{cpu:.1f}", f"{peak:.2f}", *ratios, f"{load:.1f}")


def ours(bench: Bench, dumps: Inputs, job: str, engine: str) -> Cost:
    """The job as users run it."""
    words = [
        "--date",
        DAY.isoformat(),
        "--root",
        str(dumps.root),
        "--fout",
        str(bench.store(engine)),
    ]
    return bench.run(engine, [*run_spark(), f"{job}.py", "--engine", engine, *words])


def peer(bench: Bench, dumps: Inputs, job: str) -> Cost:
    """DuckDB's process, from its start to its written table."""
    out = bench.place / PEER
    out.mkdir(exist_ok=True)
    module = "bench.peers.dumps_with_duckdb"
    return bench.run(
        PEER, [sys.executable, "-m", module, str(dumps.root), str(out), str(bench.cpus), job]
    )


def differences(bench: Bench, job: str, engine: str) -> list[str]:
    """Rows that only one of both has, some of them."""
    day = bench.store(engine) / job / DAY.isoformat()
    run = day / "runs" / json.loads((day / "CURRENT").read_text())["run"] / job
    columns = ", ".join(f'"{name}"' for name in stored_table(job).names)
    tables = {engine: f"'{run}/*.parquet'", PEER: f"'{bench.place / PEER / job}.parquet'"}
    con = duckdb.connect()
    problems = []
    for holder, lacking in ((engine, PEER), (PEER, engine)):
        rows = con.execute(
            f"SELECT {columns} FROM {tables[holder]} EXCEPT ALL SELECT {columns} FROM {tables[lacking]}"
        ).fetchall()
        problems += (
            [f"{job}: {len(rows)} rows that only {holder} has, as {rows[0]}"] if rows else []
        )
    return problems


def measure_job(
    bench: Bench, dumps: Inputs, job: str, engines: Sequence[str], repeats: int
) -> Row:
    """All engines in turns; what they made is compared after each turn."""
    row = Row(dumps.day.files, job, {name: [] for name in engines})
    for turn in range(repeats):
        for name in engines:
            cost = peer(bench, dumps, job) if name == PEER else ours(bench, dumps, job, name)
            row.costs[name].append(cost)
            print(f"  {job} {turn + 1}/{repeats} {name:9} {report.cost(cost)}", flush=True)
        problems = [
            line
            for name in engines
            if name != PEER and PEER in engines
            for line in differences(bench, job, name)
        ]
        if problems:
            sys.exit("\n".join(["the engines do not agree", *problems]))
    return row


def table(rows: Sequence[Row]) -> str:
    """Medians as a Markdown table."""
    cells = [_HEAD, *(row.cells(engine) for row in rows for engine in row.costs)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--files", default="1,5", help="millions of files in DBS, separated by commas"
    )
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the medians count")
    parser.add_argument(
        "--engines", default=f"processes,{PEER}", help="of processes, spark and duckdb"
    )
    parser.add_argument("--plain", action="store_true", help="dumps that are not packed")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache/cmsspark/bench",
        help="inputs are kept here",
    )
    parser.add_argument("--doc", type=Path, help="write the table between the marks in this file")
    chosen = parser.parse_args()
    bench = Bench(chosen.cache / "work-dumps", chosen.cpus)
    rows = []
    for millions in chosen.files.split(","):
        day = Day(_RECORDS, round(float(millions) * 1e6), not chosen.plain)
        dumps = inputs.provide(day, chosen.cache, chosen.cpus)
        inputs.warm(dumps)
        for job in chosen.jobs.split(","):
            rows.append(measure_job(bench, dumps, job, chosen.engines.split(","), chosen.repeats))
        print(table(rows), flush=True)
        if chosen.doc:
            report.between(
                chosen.doc, BEGIN, END, f"{table(rows)}\n\n{report.machine(chosen.cpus)}"
            )
    for engine in chosen.engines.split(","):
        shutil.rmtree(bench.store(engine), ignore_errors=True)


if __name__ == "__main__":
    main()
