"""A year of stored days: what periods, views, questions, status and diff cost, beside
reading raw logs again.

``python -m bench.periods`` from the top of a checkout. Makes a year of partials once
(seeded, kept in --cache), runs the commands as users run them, each several times in
turns, and prints medians. The CPU of a month from partials is held against that of
reading the month's logs again: a million records' cost is given, or measured on two
small days.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from bench.inputs import DAY, Day, provide
from bench.meter import Cost, measure
from bench.report import cost, machine
from cmsspark.apps.demo.history_2015 import History
from cmsspark.apps.demo.narration import store_history
from cmsspark.base import dates
from cmsspark.settings.pseudonyms import Pseudonyms

LAST = date(2025, 12, 31)
#: Of the paper.
RECORDS_A_DAY = 130_000_000
BEGIN, END = "<!-- a year: written by bench/periods.py -->", "<!-- end of a year -->"
#: Two days of raw logs, in millions: what the second costs more is that of records alone.
RAW = (0.2, 1.2)


@dataclass(frozen=True)
class Bench:
    """Where things are, and what every command gets."""

    cache: Path
    cpus: int

    @property
    def environ(self) -> Mapping[str, str]:
        return {**os.environ, "CMSSPARK_STATE_DIR": str(self.cache / "state")}

    def run(self, name: str, argv: list[str]) -> Cost:
        """Run a command; one that fails ends the bench."""
        log = self.cache / f"{name}.log"
        cost = measure(argv, self.environ, log, self.cpus)
        if cost.code:
            sys.exit(f"{' '.join(argv)} ended with {cost.code}:\n{log.read_text()[-2000:]}")
        return cost


def python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; main()", *words]


def commands(store: str) -> dict[str, list[str]]:
    """What is measured: name → command line."""
    fout = ("--fout", store)

    def cmsspark(*words: str) -> list[str]:
        return python("cmsspark.main", *words, *fout)

    dataset = "/BTag/Run2011A-12Oct2013-v1/AOD"
    return {
        "status, 365 days": cmsspark("status", "--days", "365", "--to", str(LAST)),
        "diff of two days": cmsspark("diff", "20251230", "20251231"),
        "week": cmsspark("period", "--week", "2025-W51"),
        "month": cmsspark("period", "--month", "2025-12"),
        "view `sites`, week": cmsspark("period", "--view", "sites", "--week", "2025-W51"),
        "view `datasets`, month": cmsspark("period", "--view", "datasets", "--month", "2025-12"),
        "ask who-reads, 4 weeks": cmsspark("ask", "who-reads", dataset),
        "ask reads, 1 week": cmsspark("ask", "reads", "T2_CH_CERN", "--weeks", "1"),
    }


def year(bench: Bench, days: int, rows: int) -> Path:
    """The store with the year, made where it is not there yet."""
    store = bench.cache / f"year-{days}-{rows}"
    key = Pseudonyms(b"bench, no secret at all: 32 bytes")
    chosen = [LAST - timedelta(days=back) for back in range(days)]
    made = store_history(History(key.pseudonym, rows=rows), str(store), chosen, key.key_id)
    print(f"{days} days of {rows:,} partials in {store} ({made} made now)", flush=True)
    return store


def raw_cost(bench: Bench) -> float:
    """CPU seconds for each million more records of raw logs, catalogue known: from two small days."""
    seconds = []
    for records in RAW:
        # The same dumps beside both: what differs is the logs.
        day = provide(Day(int(records * 1e6), 400_000), bench.cache / "raw", 1)
        words = ("data_aggregation", "--date", DAY.isoformat(), "--root", str(day.root))
        argv = python(
            "cmsspark.submit", *words, "--fout", str(bench.cache / f"raw-store-{records}")
        )
        bench.run("raw", argv)  # makes the catalogue's snapshot
        seconds.append(min(bench.run("raw", argv).cpu_s for _ in range(3)))
        print(f"raw day of {records} million records: {seconds[-1]:.1f} CPU s", flush=True)
    return (seconds[1] - seconds[0]) / (RAW[1] - RAW[0])


def table_text(costs: Mapping[str, list[Cost]], per_million: float, head: str) -> str:
    """The table and the ratio, as Markdown."""
    lines = [
        head,
        "",
        "| command | wall s | CPU s | peak GB | load |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, runs in costs.items():
        wall, cpu, peak = (
            statistics.median(getattr(run, figure) for run in runs)
            for figure in ("wall_s", "cpu_s", "peak_bytes")
        )
        lines.append(
            f"| {name} | {wall:.2f} | {cpu:.2f} | {peak / 1e9:.2f} | {max(run.load for run in runs):.1f} |"
        )
    month = statistics.median(run.cpu_s for run in costs["month"])
    raw = 31 * RECORDS_A_DAY / 1e6 * per_million
    lines += [
        "",
        f"A month of 31 days of {RECORDS_A_DAY:,} records read again from raw logs: {raw:,.0f} CPU s, at "
        f"{per_million:.2f} CPU s a million. From partials: {month:.1f} CPU s, 1/{raw / month:,.0f} of it.",
    ]
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put what was measured between the marks of ``path``; the text around them stays."""
    before, mark, following = path.read_text().partition(BEGIN)
    if not mark:
        sys.exit(f"{path} has no line {BEGIN}")
    _, _, after = following.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.periods", description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rows", type=int, default=200_000, help="partials a day")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "cmsspark-bench-periods"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument(
        "--cpu-per-million", type=float, help="CPU s of a million raw records [default: measured]"
    )
    parser.add_argument("--doc", type=Path, help="a page to write the table into")
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.cache, given.cpus)
    store = year(bench, given.days, given.rows)
    costs: dict[str, list[Cost]] = {}
    for _ in range(given.repeats):
        for name, argv in commands(str(store)).items():
            costs.setdefault(name, []).append(bench.run("command", argv))
            print(f"{name:<28} {cost(costs[name][-1])}", flush=True)
    per_million = given.cpu_per_million or raw_cost(bench)
    when = dates.to_minute(dates.now_ms())
    head = (
        f"Measured {when}, medians of {given.repeats} runs in turns; {given.days} days of {given.rows:,} partials. "
        f"{machine(given.cpus)}"
    )
    found = table_text(costs, per_million, head)
    print("\n" + found)
    if given.doc:
        write(given.doc, found)


if __name__ == "__main__":
    main()
