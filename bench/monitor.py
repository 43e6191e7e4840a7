"""``python -m bench.monitor``: what measuring a run costs, in pairs of the same run
with and without it.

Each pair runs back to back, in turns of which comes first, on the same CPUs; CPU
seconds are those of the whole process tree, what the tree leaves behind included. Wall
times of a busy host say little; CPU seconds do. The JVM has one compiler and one
collector: which methods it compiles twice, and when, would be more than what is
measured. Five pairs of the default length take some five minutes on two quiet cores.

Pairs on a host that others use differ by several percent for nothing. Beside them
stands what measuring used by the accounts of the system: run_spark itself, the monitor
beside it, and in the JVM the threads that write the event log and take the metrics of
executors; for each as much more as in the run without.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.meter import Cost, measure
from cmsspark.apps.monitor.logs.files import find_log
from cmsspark.apps.monitor.logs.reader import read_event_log
from cmsspark.store.process_samples import read_processes

_WORK = """
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.appName("bench").getOrCreate()
for turn in range({turns}):
    rows = spark.range(0, {rows}, 1, 16).select((F.xxhash64("id") % 1000).alias("key"), F.rand(1).alias("value"))
    rows.groupBy("key").agg(F.sum("value")).write.format("noop").mode("overwrite").save()
threads = spark._jvm.java.lang.management.ManagementFactory.getThreadMXBean()
used = 0
for number in threads.getAllThreadIds():
    info = threads.getThreadInfo(number)
    if info is not None and any(word in info.getThreadName() for word in ("eventLog", "heartbeater", "poller")):
        used += threads.getThreadCpuTime(number)
print("threads", used / 1e9)
spark.stop()
"""
_MAIN = """
import atexit, time
atexit.register(lambda: print("run_spark", time.process_time()))
from cmsspark.submit import main
main()
"""
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--turns", type=int, default=24, help="queries of a run: its length")
    parser.add_argument("--rows", type=float, default=8, help="million rows of a query")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument(
        "--minutes", type=float, default=6, help="no pair begins that would take longer"
    )
    parser.add_argument(
        "--words",
        default="",
        help="more options of run_spark for the measured run, such as --conf …",
    )
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cmsspark-bench-") as name:
        folder = Path(name)
        script = folder / "work.py"
        script.write_text(_WORK.format(turns=words.turns, rows=int(words.rows * 1e6)))
        pairs = _Pairs(folder, script, words.cpus, words.words.split())
        began = time.monotonic()
        for pair in range(words.pairs):
            passed = time.monotonic() - began
            if pair and passed * (pair + 1) / pair > 60 * words.minutes:
                print(
                    f"{pair} of {words.pairs} pairs in {passed / 60:.0f} minutes: the host is busy (--minutes)"
                )
                break
            pairs.measure()
        pairs.summarize()
        _reading(folder)


@dataclass
class _Pairs:
    """Pairs of runs, and what they cost."""

    folder: Path
    script: Path
    cpus: int
    more: list[str]
    costs: dict[str, list[Cost]] = field(default_factory=lambda: {"with": [], "without": []})
    #: CPU seconds of run_spark itself and of threads of the JVM that measure, by the
    #: accounts of the system.
    parts: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {"with": [], "without": []}
    )

    def ratios(self) -> list[float]:
        """How much more CPU the measured run of each pair used."""
        both = zip(self.costs["with"], self.costs["without"], strict=True)
        return [measured.cpu_s / plain.cpu_s - 1 for measured, plain in both]

    def measure(self) -> None:
        """Run one more pair."""
        number = len(self.costs["with"])
        for kind in ("without", "with") if number % 2 else ("with", "without"):
            self.costs[kind].append(_run(self.folder, self.script, kind, self.cpus, self.more))
            log = self.folder / f"{kind}.log"
            self.parts[kind].append((_said(log, "run_spark"), _said(log, "threads")))
        measured, plain = self.costs["with"][-1], self.costs["without"][-1]
        print(
            f"pair {number + 1}: {plain.cpu_s:7.2f} s CPU without, {measured.cpu_s:7.2f} s with: "
            f"{self.ratios()[-1]:+.2%} CPU, wall {measured.wall_s / plain.wall_s - 1:+.2%} (load {measured.load:.1f}); "
            f"{sum(self._own()):.2f} s by accounts",
            flush=True,
        )

    def _own(self) -> tuple[float, float, float]:
        """What measuring used in run_spark, in its monitor of processes, and in the JVM."""
        own, threads = (
            statistics.median(part[number] for part in self.parts["with"])
            - statistics.median(part[number] for part in self.parts["without"])
            for number in (0, 1)
        )
        monitor = _monitor_s(self.folder)
        return own - monitor, monitor, threads

    def summarize(self) -> None:
        """Print medians and spreads."""
        ratios = self.ratios()
        seconds = {kind: [cost.cpu_s for cost in costs] for kind, costs in self.costs.items()}
        plain = statistics.median(seconds["without"])
        of_medians = statistics.median(seconds["with"]) / plain - 1
        print(
            f"median of {len(ratios)} pairs {statistics.median(ratios):+.2%} CPU, of the medians {of_medians:+.2%}"
        )
        # What runs of one kind differ by is what a pair may differ by for nothing.
        spread = max((max(one) - min(one)) / statistics.median(one) for one in seconds.values())
        print(
            f"spread: pairs {min(ratios):+.2%} to {max(ratios):+.2%}, runs of one kind differ by {spread:.2%}"
        )
        own, monitor, threads = self._own()
        total = own + monitor + threads
        print(
            f"by the system's accounts {total:.2f} s of CPU: {total / plain:.2%} (run_spark {own:.2f} s, "
            f"monitor {monitor:.2f} s, threads of the JVM {threads:.2f} s)"
        )


def _run(folder: Path, script: Path, kind: str, cpus: int, more: list[str]) -> Cost:
    environ = {
        **os.environ,
        "CMSSPARK_STATE_DIR": str(folder / "state"),
        "CMSSPARK_CACHE_DIR": str(folder / "cache"),
    }
    options = ["--no-monitor"] if kind == "without" else more
    # As many cores as the run may use.
    local = [
        "--master",
        f"local[{cpus}]",
        "--driver-memory",
        "2g",
        "--conf",
        f"spark.driver.extraJavaOptions={_JAVA}",
    ]
    command = [sys.executable, "-c", _MAIN, str(script), *local, *options]
    cost = measure(command, environ, folder / f"{kind}.log", cpus)
    if cost.code:
        sys.exit((folder / f"{kind}.log").read_text())
    return cost


def _said(log: Path, word: str) -> float:
    """Seconds of CPU that a run wrote to its log."""
    return next(
        float(line.split()[1])
        for line in log.read_text().splitlines()
        if line.startswith(f"{word} ")
    )


def _monitor_s(folder: Path) -> float:
    """Seconds of CPU that the monitor of processes used in a run, as it says itself; the median."""
    with read_processes(folder / "state") as database:
        runs = database.runs() if database is not None else []
        entries = (
            [entry.message for run in runs for entry in database.log(run.run)]
            if database is not None
            else []
        )
    used = [
        float(match[1])
        for entry in entries
        if (match := re.search(r"the monitor used ([\d.]+) s", entry))
    ]
    return statistics.median(used) if used else 0.0


def _reading(folder: Path) -> None:
    """How fast the event log of the last run is read."""
    logs = sorted((folder / "state" / "monitor" / "events").iterdir())
    lines = find_log(str(logs[-1]))
    began = time.process_time()
    read_event_log(lines)
    seconds = time.process_time() - began
    print(f"its event log: {lines.plain_bytes / 1e6:.1f} MB of text read in {seconds:.2f} s CPU")


if __name__ == "__main__":
    main()
