"""``python -m bench.monitor``: what measuring a run costs, in pairs of the same run with and without it.

Each pair runs back to back, in turns of which comes first, on the same CPUs; CPU seconds are those of the whole process
tree, what the tree leaves behind included. Wall times of a busy host say little; CPU seconds do. The JVM has one
compiler and one collector: which methods it compiles twice, and when, would be more than what is measured. Five pairs
of the default length take some five minutes on two quiet cores.

Pairs on a host that others use differ by several percent for nothing. Beside them stands what measuring used by the
accounts of the system: run_spark itself, the monitor beside it, and in the JVM the threads that write the event log and
take the metrics of executors; for each as much more as in the run without.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.meter import Cost, measure
from cmsspark.monitor.event_log import read_event_log
from cmsspark.monitor.event_log_files import find_log
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
    parser.add_argument("--words", default="", help="more options of run_spark for the measured run, such as --conf …")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cmsspark-bench-") as name:
        folder = Path(name)
        script = folder / "work.py"
        script.write_text(_WORK.format(turns=words.turns, rows=int(words.rows * 1e6)))
        ratios = []
        every: dict[str, list[float]] = {"with": [], "without": []}
        parts: dict[str, list[float]] = {"with": [], "without": []}
        for pair in range(words.pairs):
            costs: dict[str, Cost] = {}
            for kind in ("without", "with") if pair % 2 else ("with", "without"):
                costs[kind] = _run(folder, script, kind, words.cpus, words.words.split())
                every[kind].append(costs[kind].cpu_s)
                parts[kind].append(sum(_said(folder / f"{kind}.log", word) for word in ("threads", "run_spark")))
            ratios.append(costs["with"].cpu_s / costs["without"].cpu_s - 1)
            print(
                f"pair {pair + 1}: {costs['without'].cpu_s:7.2f} s CPU without, {costs['with'].cpu_s:7.2f} s with: "
                f"{ratios[-1]:+.2%} CPU, wall {costs['with'].wall_s / costs['without'].wall_s - 1:+.2%} "
                f"(load {costs['with'].load:.1f})",
                flush=True,
            )
        of_medians = statistics.median(every["with"]) / statistics.median(every["without"]) - 1
        print(f"median of {len(ratios)} pairs {statistics.median(ratios):+.2%} CPU, of the medians {of_medians:+.2%}")
        # What runs of one kind differ by is what a pair may differ by for nothing.
        spread = max((max(costs) - min(costs)) / statistics.median(costs) for costs in every.values())
        print(f"spread: pairs {min(ratios):+.2%} to {max(ratios):+.2%}, runs of one kind differ by {spread:.2%}")
        own = statistics.median(parts["with"]) - statistics.median(parts["without"]) + _monitor_s(folder)
        share = own / statistics.median(every["without"])
        print(
            f"by the system's accounts {own:.2f} s of CPU: {share:.2%} ({_monitor_s(folder):.2f} s of it the monitor)"
        )
        _reading(folder)


def _run(folder: Path, script: Path, kind: str, cpus: int, more: list[str]) -> Cost:
    environ = {**os.environ, "CMSSPARK_STATE_DIR": str(folder / "state"), "CMSSPARK_CACHE_DIR": str(folder / "cache")}
    options = ["--no-monitor"] if kind == "without" else more
    # As many cores as the run may use, and no class archive, which comes with time.
    local = ["--master", f"local[{cpus}]", "--driver-memory", "2g", "--conf", f"spark.driver.extraJavaOptions={_JAVA}"]
    command = [sys.executable, "-c", _MAIN, str(script), *local, *options]
    cost = measure(command, {**environ, "CMSSPARK_WARM_UP": "0"}, folder / f"{kind}.log", cpus)
    if cost.code:
        sys.exit((folder / f"{kind}.log").read_text())
    return cost


def _said(log: Path, word: str) -> float:
    """Seconds of CPU that a run wrote to its log."""
    return next(float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith(f"{word} "))


def _monitor_s(folder: Path) -> float:
    """Seconds of CPU that the monitor of processes used in a run, as it says itself; the median."""
    with read_processes(folder / "state") as database:
        runs = database.runs() if database is not None else []
        entries = [entry.message for run in runs for entry in database.log(run.run)] if database is not None else []
    used = [float(match[1]) for entry in entries if (match := re.search(r"the monitor used ([\d.]+) s", entry))]
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
