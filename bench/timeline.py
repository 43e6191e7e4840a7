"""Where the time of one run of the daily job goes: ``python -m bench.timeline --records
1 [--cold]``.

Steps from Spark's event log, processes and their CPU time as seen from outside. Both
cost a little: for figures, take ``bench.daily``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench import inputs
from bench.daily import Bench, arguments, run_spark
from bench.inputs import Day

_EVERY_S = 0.02


@dataclass
class Seen:
    """A process as last seen: what it is, when it began (unix time), its CPU seconds."""

    role: str
    began: float
    cpu_s: float
    last: float
    #: CPU seconds as they were seen to grow: (unix time, seconds).
    grown: list[tuple[float, float]] = field(default_factory=list)
    #: CPU seconds by thread: of the JVM.
    threads: dict[int, tuple[str, float]] = field(default_factory=dict)

    def until(self, when: float) -> float:
        """CPU seconds up to a time."""
        before = [cpu for seen, cpu in self.grown if seen <= when]
        return before[-1] if before else 0.0


def watch(
    command: list[str], environ: dict[str, str], log: Path
) -> tuple[float, float, dict[int, Seen]]:
    """Run the command; return its start and end as unix times, and the processes that it had."""
    seen: dict[int, Seen] = {}
    with log.open("wb") as sink:
        began = time.time()
        child = subprocess.Popen(command, env=environ, stdout=sink, stderr=subprocess.STDOUT)
        me = psutil.Process()
        while child.poll() is None:
            for process in me.children(recursive=True):
                _note(process, seen)
            time.sleep(_EVERY_S)
        ended = time.time()
    if child.returncode:
        raise SystemExit(log.read_text())
    return began, ended, seen


def _note(process: psutil.Process, seen: dict[int, Seen]) -> None:
    try:
        with process.oneshot():
            times = process.cpu_times()
            words = process.cmdline()
            if words:
                role = _role(words)
                entry = seen.setdefault(process.pid, Seen(role, process.create_time(), 0.0, 0.0))
                entry.role, entry.cpu_s, entry.last = role, times.user + times.system, time.time()
                entry.grown.append((entry.last, entry.cpu_s))
                if role == "JVM":
                    entry.threads.update(_threads(process.pid))
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        pass


def _threads(pid: int) -> dict[int, tuple[str, float]]:
    times = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (path / "stat").read_text()
        except OSError:
            continue
        name, fields = (
            text[text.index("(") + 1 : text.rindex(")")],
            text[text.rindex(")") + 2 :].split(),
        )
        times[int(path.name)] = (
            name,
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        )
    return times


def _role(words: list[str]) -> str:
    text = " ".join(words)
    if "pyspark.daemon" in text or "pyspark.worker" in text:
        return "Python workers"
    if "java" in Path(words[0]).name:
        return "JVM" if "org.apache.spark.deploy.SparkSubmit" in text else "JVM (launcher)"
    if "python" in Path(words[0]).name:
        return (
            "run_spark"
            if "run_spark" in text or "submit import main" in text
            else "driver's Python"
        )
    return Path(words[0]).name


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """The events that Spark logged."""
    for path in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size
    ):
        for line in path.read_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)


def steps(folder: Path) -> list[tuple[float, str]]:
    """What happened when (unix time): the application, each job and each stage with its tasks."""
    moments: list[tuple[float, str]] = []
    for event in events(folder):
        match event["Event"]:
            case "SparkListenerApplicationStart":
                moments.append((event["Timestamp"] / 1e3, "context started"))
            case "SparkListenerApplicationEnd":
                moments.append((event["Timestamp"] / 1e3, "context stopping"))
            case "SparkListenerJobStart":
                moments.append((event["Submission Time"] / 1e3, f"job {event['Job ID']} starts"))
            case "SparkListenerJobEnd":
                moments.append((event["Completion Time"] / 1e3, f"job {event['Job ID']} ends"))
            case "SparkListenerStageCompleted":
                stage = event["Stage Info"]
                text = f"stage {stage['Stage ID']}: {stage['Number of Tasks']} tasks, {stage['Stage Name']}"
                moments.append((stage["Submission Time"] / 1e3, f"  > {text}"))
                moments.append((stage["Completion Time"] / 1e3, f"  < stage {stage['Stage ID']}"))
    return sorted(moments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--records", type=float, default=1.0, help="millions of records")
    parser.add_argument("--files", type=int)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cmsspark/bench")
    parser.add_argument("rest", nargs="*", help="more words for run_spark, after --")
    chosen = parser.parse_args()
    records = round(chosen.records * 1e6)
    bench = Bench(chosen.cache / "work", 2)
    day = inputs.provide(Day(records, chosen.files or inputs.files_for(records)), chosen.cache, 2)
    bench.clear()
    if not chosen.cold:
        bench.ours(day, "warm")
        bench.clear()
    else:
        shutil.rmtree(bench.place / "cache/catalogue", ignore_errors=True)
    logs = bench.place / "events"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    command = [*run_spark(), *arguments(day, bench.store("warm")), *chosen.rest]
    command += ["--conf", "spark.eventLog.enabled=true"]
    command += [
        "--conf",
        f"spark.eventLog.dir=file://{logs}",
        "--conf",
        "spark.eventLog.compress=false",
    ]
    load = os.getloadavg()[0]
    began, ended, seen = watch(command, dict(bench.environ), bench.place / "timeline.log")
    print((bench.place / "timeline.log").read_text())
    show(began, ended, seen, steps(logs))
    print(f"load average at the start: {load:.1f}")


def show(
    began: float, ended: float, seen: dict[int, Seen], moments: list[tuple[float, str]]
) -> None:
    """Steps with seconds since the start and since the step before, and CPU seconds of
    the JVM and of all so far.
    """
    starts = [
        (process.began, f"{process.role} [{pid}] begins")
        for pid, process in seen.items()
        if process.cpu_s >= 0.05
    ]
    before = began
    print(f"{'s':>7}  {'':7}  {'JVM':>6}  {'all':>6} CPU s")
    for when, text in sorted([*starts, *moments, (ended, "ended")]):
        jvm = sum(process.until(when) for process in seen.values() if process.role == "JVM")
        total = sum(process.until(when) for process in seen.values())
        print(f"{when - began:7.2f}  +{when - before:5.2f}  {jvm:6.2f}  {total:6.2f}  {text}")
        before = when
    _totals(seen)


def _totals(seen: dict[int, Seen]) -> None:
    by_role: dict[str, float] = defaultdict(float)
    by_thread: dict[str, float] = defaultdict(float)
    for process in seen.values():
        by_role[process.role] += process.cpu_s
        for name, cpu in process.threads.values():
            by_thread[name.rstrip("0123456789-#. ")] += cpu
    for role, cpu in sorted(by_role.items(), key=lambda item: -item[1]):
        if cpu >= 0.05:
            print(f"{cpu:6.2f} CPU s  {role}")
    for name, cpu in sorted(by_thread.items(), key=lambda item: -item[1])[:16]:
        print(f"{cpu:6.2f} CPU s  JVM, threads called {name}")


if __name__ == "__main__":
    main()
