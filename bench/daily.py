"""The daily job against DuckDB and Polars: ``python -m bench.daily`` from the top of a checkout.

Makes days of 1 to 8 million records, counts each by ``run_spark data_aggregation.py``
(cold: no catalogue snapshot; warm: with it; spark: warm, by Spark) and by the peers on
the same files, in turns, two threads each; checks that all agree in every cell; prints
medians and writes them to a file. Ends with 1 where anything differs or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bench import compare, inputs, report
from bench.inputs import DAY, Day, Inputs
from bench.meter import Cost, measure
from cmsspark.base import compiled
from cmsspark.filesystems.storage import disk_rate
from cmsspark.settings import pseudonyms

#: The last by ``pip install chdb`` (0.9 GB on disk), and only if ``--engines`` names it.
PEERS = ("duckdb", "polars", "chdb")
#: Ours: processes without a catalogue from before, with it, and Spark with it.
OURS = ("cold", "warm", "spark")
#: Another report of the day that `warm` has counted.
SECOND = "second"


@dataclass
class Bench:
    """Where measured runs work. Each engine has a folder for its results; ours, a
    store, a state and a cache.
    """

    place: Path
    cpus: int
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        top = str(Path(__file__).resolve().parents[1])
        here = {
            "CMSSPARK_STATE_DIR": self.place / "state",
            "CMSSPARK_CACHE_DIR": self.place / "cache",
            "PYTHONPATH": top,
        }
        self.environ = {**os.environ, **{name: str(value) for name, value in here.items()}}
        # As users have it: Python's files are compiled once, not by each run.
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self, name: str, command: list[str], **environ: str) -> Cost:
        """A measured run. Ends the bench where it fails."""
        log = self.place / f"{name}.log"
        cost = measure(command, {**self.environ, **environ}, log, self.cpus)
        if cost.code:
            sys.exit(f"{' '.join(command)}\nended with {cost.code}:\n{log.read_text()[-3000:]}")
        return cost

    def ours(self, day: Inputs, how: str) -> Cost:
        """The job as users run it; ``cold`` without a catalogue from before, ``warm``
        with it, ``spark`` by Spark.
        """
        if how == "cold":
            shutil.rmtree(self.place / "cache/catalogue", ignore_errors=True)
        words = ["--engine", "spark"] if how == "spark" else []
        return self.run(how, [*run_spark(), *words, *arguments(day, self.store(how))])

    def second(self, day: Inputs) -> Cost:
        """Another report of a day that is counted already, as users run it: it reads no logs."""
        cost = self.run(SECOND, [*run_spark(), *arguments(day, self.store("warm"), "dbs_aaa.py")])
        if "taken from data_aggregation" not in (self.place / f"{SECOND}.log").read_text():
            sys.exit("the second report has read the logs again")
        return cost

    def store(self, how: str) -> Path:
        """Each way has a store of its own: a run knows nothing of the other's."""
        return self.place / f"store-{how}"

    def peer(self, day: Inputs, name: str) -> Cost:
        """A peer's process, from its start to its written tables."""
        out = self.place / name
        out.mkdir(exist_ok=True)
        command = [sys.executable, "-m", f"bench.peers.with_{name}", str(day.root), str(out)]
        more = [str(self.cpus)] if name != "polars" else []
        return self.run(name, [*command, *more], POLARS_MAX_THREADS=str(self.cpus))

    def check(self, day: Inputs, how: str, peers: list[str]) -> list[str]:
        """What differs between ours and the bins that were made, and the cells that peers found."""
        store = self.store(how) / "data_aggregation" / DAY.isoformat()
        run = store / "runs" / json.loads((store / "CURRENT").read_text())["run"]
        manifest = json.loads((run / "manifest.json").read_text())
        problems = compare.bins(manifest["reconciliation"], day.reconciliation)
        tables = {table: str(run / table) for table in compare.COLUMNS}
        key = pseudonyms.load_or_make(self.place / "state" / pseudonyms.KEY_FILE)
        for name in peers:
            problems += [
                f"{how} and {name}: {line}"
                for line in compare.differences(tables, self.place / name, key)
            ]
        return problems

    def clear(self) -> None:
        """Forget results, so that none is taken for the next one's."""
        for path in (*map(self.store, OURS), *(self.place / name for name in PEERS)):
            shutil.rmtree(path, ignore_errors=True)


def run_spark() -> list[str]:
    """The command of the installed package, or the same without an install."""
    script = Path(sys.executable).with_name("run_spark")
    return (
        [str(script)]
        if script.exists()
        else [sys.executable, "-c", "from cmsspark.submit import main; main()"]
    )


def arguments(day: Inputs, store: Path, job: str = "data_aggregation.py") -> list[str]:
    """The job's own words."""
    return [job, "--date", DAY.isoformat(), "--root", str(day.root), "--fout", str(store)]


def measure_day(
    bench: Bench, day: Inputs, engines: list[str], repeats: int, say: Callable[[str], None]
) -> report.Row:
    """All engines in turns; what they found is compared after each turn."""
    disk = disk_rate(day.parts("aaa")[0])
    row = report.Row(day.day, day.log_bytes, {name: [] for name in engines}, disk)
    inputs.warm(day)
    for turn in range(repeats):
        bench.clear()
        for name in engines:
            if name == SECOND:  # noqa: SIM108
                cost = bench.second(day)
            else:
                cost = bench.ours(day, name) if name in OURS else bench.peer(day, name)
            row.costs[name].append(cost)
            say(f"  {turn + 1}/{repeats} {name:7} {report.cost(cost)}")
        peers = [name for name in engines if name in PEERS]
        problems = [
            line for how in OURS if how in engines for line in bench.check(day, how, peers)
        ]
        if problems:
            sys.exit("\n".join([f"{day.day.name}: the engines do not agree", *problems]))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument(
        "--records", default="1,2,4,8", help="millions of records, separated by commas"
    )
    parser.add_argument(
        "--files", type=int, help="files in DBS (else 1 to 5 million, by the records)"
    )
    parser.add_argument(
        "--repeats",
        default="3",
        help="runs of each, the medians count; or one number for each size",
    )
    parser.add_argument(
        "--gzip", choices=("no", "yes", "both"), default="no", help="packed part files and dumps"
    )
    parser.add_argument("--engines", default="cold,warm,second,duckdb,polars")
    parser.add_argument(
        "--generations", choices=("today", "mixed"), default="today", help="mixed: ours alone"
    )
    parser.add_argument(
        "--favourite",
        type=float,
        default=0.0,
        help="also days on which one dataset has this share",
    )
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache/cmsspark/bench",
        help="inputs are kept here",
    )
    parser.add_argument(
        "--doc", type=Path, help="write the table to this file, as docs/performance.md has it"
    )
    chosen = parser.parse_args()
    names = chosen.engines.split(",")
    if unknown := {*names} - {*OURS, SECOND, *PEERS}:
        parser.error(
            f"no engine is {', '.join(sorted(unknown))}: {', '.join((*OURS, SECOND, *PEERS))}"
        )
    engines = [name for name in names if chosen.generations == "today" or name not in PEERS]
    sizes = [round(float(text) * 1e6) for text in chosen.records.split(",")]
    repeats = [int(text) for text in chosen.repeats.split(",")] * len(sizes)
    packed = {"no": [False], "yes": [True], "both": [False, True]}[chosen.gzip]
    bench = Bench(chosen.cache / "work", chosen.cpus)
    if reason := compiled.unavailable_reason():
        print(
            f"Compiled code is {reason}: logs take up to three times as long. bin/setup makes it.",
            flush=True,
        )
    rows = []
    shares = [0.0, chosen.favourite] if chosen.favourite else [0.0]
    for is_packed, share in product(packed, shares):
        for records, turns in zip(sizes, repeats, strict=False):
            day = Day(
                records,
                chosen.files or inputs.files_for(records),
                is_packed,
                chosen.generations,
                share,
            )
            made = inputs.provide(day, chosen.cache, chosen.cpus)
            print(f"{day.name}: {made.log_bytes / 1e9:.2f} GB of logs", flush=True)
            rows.append(
                measure_day(bench, made, engines, turns, lambda text: print(text, flush=True))
            )
            print(report.table(rows), flush=True)
            if chosen.doc:
                report.write(chosen.doc, rows, chosen.cpus)


if __name__ == "__main__":
    main()
