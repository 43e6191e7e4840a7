"""A day on a real HDFS and YARN: ``python -m bench.cluster`` from the top of a checkout.

Starts the test cluster on this machine, puts days of synthetic logs on its HDFS and
counts each there by ``run_spark
--yarn``, and on this host by processes, each once to make the index of the catalogue
 and once with it. Compares every cell, prints jobs, stages, tasks, files, bytes moved,
 CPU seconds and peaks of memory, and writes them to a file. Beside them is an
 application that does nothing (0 records). A second table has the CPU seconds of each
 part of an application: processes by role, threads of JVMs by purpose. Ends with 1
 where anything differs or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from bench import event_log, inputs, profiled_daemon
from bench.cluster_report import Result, report, write, written
from bench.daily import run_spark
from bench.event_log import Application
from bench.inputs import DAY, Day, Inputs
from bench.meter import Cost, measure
from bench.roles import DAEMONS, Roles, Use
from cmsspark.filesystems.hdfs import CLIENT_KEY
from cmsspark.submit.host import find_spark
from tests.cluster import environment
from tests.cluster.daemons import Cluster

_TOP = Path(__file__).resolve().parents[1]
_SETTINGS = """
environment: hdfs:///spark/environment.tar.gz
spark:
  spark.executor.memory: {memory}
  spark.executor.memoryOverhead: {overhead}
  spark.executor.cores: {cores}
  spark.dynamicAllocation.maxExecutors: 1
  spark.driver.memory: 1g
  spark.eventLog.compress: false
  spark.eventLog.rolling.enabled: false
  spark.shuffle.service.port: {port}
"""
_NOTHING = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.range(0, {tasks}, 1, {tasks}).mapInArrow(lambda batches: batches, "id bigint")
assert len(rows.collect()) == {tasks}
spark.stop()
"""


@dataclass
class Bench:
    """The cluster, and where results and caches lie."""

    place: Path
    cluster: Cluster
    cpus: int
    memory: str
    overhead: str

    def start(self) -> None:
        """Start the cluster and put the packed Python environment there."""
        self.cluster.up()
        self.cluster.hdfs.put(environment.packed(), "/spark/environment.tar.gz")
        text = _SETTINGS.format(
            port=self.cluster.ports["nodemanager-shuffle"],
            memory=self.memory,
            overhead=self.overhead,
            cores=self.cpus,
        )
        (self.place / "settings.yaml").write_text(text)
        (self.place / "empty.yaml").write_text("{}\n")

    def environ(self, settings: str, cache: str) -> dict[str, str]:
        """What ``run_spark`` finds in its environment."""
        inherited = {
            name: os.environ[name]
            for name in ("HOME", "JAVA_HOME", "PATH", "USER", "LANG")
            if name in os.environ
        }
        return {
            **inherited,
            **self.cluster.env,
            "PYTHONPATH": str(_TOP),
            "CMSSPARK_STATE_DIR": str(self.place / "state"),
            "CMSSPARK_CACHE_DIR": str(self.place / cache),
            "CMSSPARK_SETTINGS": str(self.place / settings),
        }

    def by_processes(self, day: Inputs, job: str, way: str) -> Result:
        """Count on this host."""
        store = self.place / "store"
        words = [
            *run_spark(),
            job,
            "--date",
            DAY.isoformat(),
            "--root",
            str(day.root),
            "--fout",
            str(store),
            "--local",
        ]
        cost = self._measured(words, self.environ("empty.yaml", "cache-here"), f"{job}-processes")
        return Result(
            day.day.records, job, f"processes, {way}", cost, _files(self._current(store, job)[1])
        )

    def on_yarn(
        self, day: Inputs, job: str, way: str, client: str = "auto", *, profile: bool = False
    ) -> Result:
        """Count on the cluster, with inputs and results on HDFS. ``client``: who reads
        the logs there.

        ``profile``: Python's workers sample themselves.
        """
        root, fout = f"/bench/{day.day.name}", "hdfs:///bench/store"
        words = [
            *run_spark(),
            job,
            "--date",
            DAY.isoformat(),
            "--root",
            f"hdfs://{root}",
            "--fout",
            fout,
            "--yarn",
        ]
        words += ["--conf", f"{CLIENT_KEY}={client}"]
        samples = self.place / "samples"
        shutil.rmtree(samples, ignore_errors=True)
        samples.mkdir()
        if profile:
            words += ["--py-files", str(_TOP / "bench/profiled_daemon.py")]
            words += ["--conf", "spark.python.daemon.module=profiled_daemon"]
            words += ["--conf", f"spark.executorEnv.BENCH_PROFILE={samples}"]
        cost, application, uses = self._application(words, f"{job}-yarn")
        uses["Python workers"].threads = {
            name: value for name, value in profiled_daemon.counts(samples).items() if value
        }
        fetched = self.place / "fetched"
        shutil.rmtree(fetched, ignore_errors=True)
        self.cluster.hdfs.fetch_tree(f"/bench/store/{job}", fetched / job)
        files = _files(self._current(fetched, job)[1])
        by_java = " by the JVM" if client == "java" else ""
        return Result(
            day.day.records, job, f"YARN{by_java}, {way}", cost, files, application, uses
        )

    def nothing(self) -> Result:
        """Run a script whose tasks only start their Python: what any application takes,
        whatever it counts.
        """
        script = self.place / "nothing.py"
        script.write_text(_NOTHING.format(tasks=self.cpus))
        cost, application, uses = self._application(
            [*run_spark(), "--yarn", str(script)], "nothing-yarn"
        )
        return Result(0, "none", "YARN, warm", cost, 0, application, uses)

    def _application(
        self, words: Sequence[str], name: str
    ) -> tuple[Cost, Application, dict[str, Use]]:
        before = set(self.cluster.hdfs.names("/spark-history"))
        roles = Roles(self._daemons)
        roles.look()
        roles.start()
        try:
            cost = self._measured(words, self.environ("settings.yaml", "cache-yarn"), name)
        finally:
            uses = roles.stop()
        (log,) = set(self.cluster.hdfs.names("/spark-history")) - before
        text = self.cluster.hdfs.read(f"/spark-history/{log}").decode()
        return cost, event_log.read(text.splitlines()), uses

    def differences(self, job: str) -> list[str]:
        """Tables that the cluster and this host have counted differently."""
        problems = []
        (stored_here, manifest), (stored_on_yarn, _) = (
            self._current(self.place / where, job) for where in ("store", "fetched")
        )
        for name in manifest["tables"]:
            rows = [
                pl.read_parquet(sorted((run / name).glob("part-*")))
                for run in (stored_here, stored_on_yarn)
            ]
            rows = [table.sort(table.columns, nulls_last=True) for table in rows]
            if not rows[0].height or not rows[0].equals(rows[1]):
                problems.append(
                    f"{job}: {name} differs: {rows[0].height:,} rows here, {rows[1].height:,} on YARN"
                )
        return problems

    def _measured(self, words: Sequence[str], environ: dict[str, str], name: str) -> Cost:
        log = self.place / f"{name}.log"
        cost = measure(words, environ, log, self.cpus)
        if cost.code:
            sys.exit(f"{name} ended with {cost.code}:\n{log.read_text()[-3000:]}")
        return cost

    def _daemons(self) -> dict[int, str]:
        pids = {name: self.cluster.pid(name) for name in self.cluster.state["names"]}
        return {pid: DAEMONS[name != "datanode"] for name, pid in pids.items() if pid is not None}

    def _current(self, store: Path, job: str) -> tuple[Path, dict[str, Any]]:
        folder = store / job / DAY.isoformat()
        run = folder / "runs" / json.loads((folder / "CURRENT").read_text())["run"]
        return run, json.loads((run / "manifest.json").read_text())


def _files(manifest: dict[str, Any]) -> int:
    return sum(entry["files"] for entry in manifest["tables"].values())


def measure_day(
    bench: Bench,
    day: Inputs,
    jobs: Sequence[str],
    *,
    repeats: int = 1,
    with_java: bool = False,
    profile: bool = False,
) -> list[Result]:
    """Count a day by all jobs in both ways, with a new index and ``repeats`` times with
    the old one.

    ``with_java``: with the old one also by Spark's JVM, which then reads the logs on
    HDFS. ``profile``: also with workers that sample themselves.
    """
    if f"{day.day.name}" not in bench.cluster.hdfs.names("/bench"):
        bench.cluster.hdfs.put_tree(day.root / "project", f"/bench/{day.day.name}/project")
    inputs.warm(day)
    results = []
    for job in jobs:
        for cache in ("cache-here", "cache-yarn"):
            shutil.rmtree(bench.place / cache / "catalogue", ignore_errors=True)
        in_turn = ("cold", *("warm",) * repeats)
        ways = [
            partial(one, way=way) for way in in_turn for one in (bench.by_processes, bench.on_yarn)
        ]
        if with_java:
            ways.append(partial(bench.on_yarn, way="warm", client="java"))
        if profile:
            ways.append(partial(bench.on_yarn, way="profiled", profile=True))
        for one in ways:
            results.append(one(day, job))
            print(f"{results[-1].name}: {results[-1].cpu_s:.1f} CPU s", flush=True)
        if problems := bench.differences(job):
            sys.exit("\n".join(problems))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument(
        "--records", default="0.05,1,8", help="millions of records, separated by commas"
    )
    parser.add_argument("--jobs", default="data_aggregation", help="jobs, separated by commas")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each day with its index")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="heap of the executor")
    parser.add_argument("--overhead", default="2g", help="its memory besides the heap")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache/cmsspark/bench",
        help="inputs are kept here",
    )
    parser.add_argument(
        "--gzip", action="store_true", help="logs are packed, as archives have them"
    )
    parser.add_argument(
        "--java", action="store_true", help="count also with logs that Spark's JVM reads"
    )
    parser.add_argument(
        "--profile", action="store_true", help="count also with workers that sample what they do"
    )
    parser.add_argument(
        "--doc", type=Path, help="write the table to this file, as docs/performance.md has it"
    )
    given = parser.parse_args()
    place = given.cache / "cluster"
    place.mkdir(parents=True, exist_ok=True)
    daemons = Cluster(place / "daemons", find_spark({}).home, shutil.which("java") or "java")
    bench = Bench(place, daemons, given.cpus, given.memory, given.overhead)
    results: list[Result] = []
    try:
        bench.start()
        for records in (round(float(text) * 1e6) for text in given.records.split(",")):
            day = inputs.provide(
                Day(records, inputs.files_for(records), given.gzip), given.cache, given.cpus
            )
            if not results:
                bench.nothing()  # the first application of a node unpacks the environment
                results += [bench.nothing() for _ in range(given.repeats)]
            options = {"repeats": given.repeats, "with_java": given.java, "profile": given.profile}
            results += measure_day(bench, day, given.jobs.split(","), **options)
    finally:
        daemons.remove()
    print(report(results))
    if given.doc:
        write(given.doc, written(results, given.cpus))


if __name__ == "__main__":
    main()
