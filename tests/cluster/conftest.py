"""One cluster for all tests that need it, the day of a small CMS on it, and what this
host counts of that day.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bench import event_log
from bench.event_log import Application
from cmsspark.apps.demo import LogLayout, make
from cmsspark.submit.host import find_spark
from cmsspark.submit.run_command import descendants, with_signal
from tests.cluster import environment
from tests.cluster.daemons import Cluster, until
from tests.cluster.kdc import Realm

#: The checkout: the nodes of the cluster do not see it, nor what else only the user's host has.
ROOT = Path(__file__).resolve().parents[2]
DAY = date(2026, 1, 15)
#: The day after has logs, too.
DAYS = (DAY, date(2026, 1, 16))
RUN = "from cmsspark.submit import main; main()"
CMSSPARK = "from cmsspark.main import main; main()"
#: JVMs that live shortly.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Small executors, and the environment on HDFS: nodes fetch it once.
SETTINGS = """
environment: hdfs:///spark/environment.tar.gz
spark:
  spark.executor.memory: 512m
  spark.executor.memoryOverhead: 1g
  spark.executor.cores: 2
  spark.driver.memory: 600m
  spark.driver.memoryOverhead: 800m
  spark.dynamicAllocation.maxExecutors: 1
  spark.driver.extraJavaOptions: {java}
  spark.executor.extraJavaOptions: {java}
  spark.yarn.am.extraJavaOptions: {java}
  spark.sql.shuffle.partitions: 4
  spark.shuffle.service.port: {port}
"""
#: An event log that is one file of text.
READABLE = (
    "--conf",
    "spark.eventLog.compress=false",
    "--conf",
    "spark.eventLog.rolling.enabled=false",
)
#: A run may take this long on a machine that others use, too.
DEADLINE_S = 600


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class World:
    """The cluster, and a user of it whose logs and dumps lie in the folders of production."""

    cluster: Cluster
    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def local(self) -> Path:
        """The same logs and dumps on this host."""
        return self.folder / "cms"

    def environ(self, **more: str) -> dict[str, str]:
        """What the user has in the environment; the package is found where these tests are."""
        kept = {
            name: os.environ[name]
            for name in ("HOME", "JAVA_HOME", "PATH", "USER", "LANG")
            if name in os.environ
        }
        return {
            **kept,
            **self.cluster.env,
            **(self.cluster.realm.environment if self.cluster.realm else {}),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder / "tmp"),
            "CMSSPARK_STATE_DIR": str(self.folder / "state"),
            "CMSSPARK_CACHE_DIR": str(self.folder / "cache"),
            "CMSSPARK_SETTINGS": str(self.folder / "settings.yaml"),
            **more,
        }

    def start(self, *words: str, program: str = RUN, **more: str) -> subprocess.Popen[str]:
        """Start run_spark, or another program of ours, with these words."""
        process = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environ(**more),
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def until(self, process: subprocess.Popen[str], holds: Callable[[], bool], what: str) -> None:
        """Until something holds while a command is at work; one that ends before is
        shown, and fails the test.
        """
        until(lambda: holds() or process.poll() is not None, what, DEADLINE_S)
        if process.poll() is not None:
            self.end(process)
            raise AssertionError(f"it ended before there was {what}")

    def end(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for a command's end."""
        out, err = process.communicate(timeout=DEADLINE_S)
        self.running.remove(process)
        sys.stderr.write(f"$ {' '.join(map(str, process.args[3:]))}\n{out}{err}")  # type: ignore[index,union-attr]
        return Ended(process.returncode, out, err)

    def run(self, *words: str, **more: str) -> Ended:
        """run_spark with these words, to its end."""
        return self.end(self.start(*words, **more))

    def cmsspark(self, *words: str, **more: str) -> Ended:
        """cmsspark with these words, to its end."""
        return self.end(self.start(*words, program=CMSSPARK, **more))

    def on_yarn(self, job: str, fout: str, *words: str, day: date = DAY) -> tuple[str, ...]:
        """The words of a job on YARN; inputs are found where production has them."""
        return (job, "--date", f"{day:%Y%m%d}", "--fout", fout, "--yarn", *words)

    def here(self, job: str, day: date = DAY) -> Path:
        """The store with what this host counts of a day; counted once."""
        store = self.folder / "local"
        if not (store / job / day.isoformat()).is_dir():
            words = (
                job,
                "--date",
                f"{day:%Y%m%d}",
                "--root",
                str(self.local),
                "--fout",
                str(store),
                "--local",
            )
            ended = self.run(*words, CMSSPARK_SETTINGS=str(self.folder / "empty.yaml"))
            assert ended.code == 0, ended.err
        return store

    def fetched(self, path: str, namenode: str = "namenode") -> Path:
        """A folder of HDFS, copied to this host."""
        target = self.folder / "fetched" / namenode / path.strip("/")
        shutil.rmtree(target, ignore_errors=True)
        hdfs = self.cluster.hdfs_of(namenode)
        hdfs.fetch_tree(path, target)
        return target

    def kill_while_staging(self, job: str, fout: str, namenode: str = "namenode") -> None:
        """Begin to count the day, and kill the driver between the first table that it
        writes aside and the switch.

        ``namenode``: that of ``fout``, whose location begins with ``hdfs://`` or with
        that namespace.
        """
        hdfs = self.cluster.hdfs_of(namenode)
        runs = f"{fout.removeprefix(self.cluster.uri(namenode)).removeprefix('hdfs://')}/{job}/{DAY.isoformat()}/runs"
        before = set(hdfs.names(runs))
        running = self.start(*self.on_yarn(job, fout))

        def staged() -> bool:
            return any(hdfs.names(f"{runs}/{one}/{job}") for one in set(hdfs.names(runs)) - before)

        self.until(running, staged, "a table that is written aside")
        self.shell(running)
        assert self.end(running).code == -signal.SIGKILL

    def count_twice_at_once(self, job: str, fout: str) -> tuple[Ended, Ended]:
        """Count the day, and once more while the first one stands still with its lease;
        how the two end.
        """
        words, place = (
            self.on_yarn(job, fout),
            f"{fout.removeprefix('hdfs://')}/.leases/{job}/{DAY.isoformat()}",
        )

        def leases() -> list[str]:
            # What is still being written has another name.
            return [name for name in self.cluster.hdfs.names(place) if name.endswith(".json")]

        before = leases()
        first = self.start(*words)
        self.until(first, lambda: leases() != before, "a lease")
        # So the two do meet, however slowly the second one starts.
        self.shell(first, signal.SIGSTOP)
        try:
            late = self.run(*words)
        finally:
            self.shell(first, signal.SIGCONT)
        return self.end(first), late

    def shell(self, process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
        """A signal for run_spark and all that it has started."""
        os.killpg(process.pid, number)


def current(store: Path, job: str, when: str = DAY.isoformat()) -> tuple[Path, dict[str, Any]]:
    """The folder of the day's or period's result that counts, and its manifest."""
    place = store / job / when
    run = place / "runs" / json.loads((place / "CURRENT").read_text())["run"]
    return run, json.loads((run / "manifest.json").read_text())


def cells(run: Path, table: str) -> pl.DataFrame:
    """A table's rows in an order of their own."""
    rows = pl.read_parquet(sorted((run / table).glob("*.parquet")))
    plain = [name for name, kind in rows.schema.items() if not isinstance(kind, pl.List)]
    return rows.select(sorted(rows.columns)).sort(sorted(plain), nulls_last=True)


def assert_same(world: World, job: str, store: Path, day: date = DAY) -> dict[str, Any]:
    """The result in ``store`` has, cell by cell, what this host counts; return its manifest."""
    run, manifest = current(store, job, day.isoformat())
    wanted_run, wanted = current(world.here(job, day), job, day.isoformat())
    assert manifest.get("reconciliation") == wanted.get("reconciliation")
    assert manifest["tables"].keys() == wanted["tables"].keys()
    for table in manifest["tables"]:
        rows, wanted_rows = cells(run, table), cells(wanted_run, table)
        assert rows.height > 0 and rows.equals(wanted_rows), (table, rows, wanted_rows)
    return manifest


def containers(world: World, main_class: bytes) -> list[int]:
    """The JVMs of that class that this cluster's nodes have started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            is_ours = os.readlink(place / "cwd").startswith(str(world.cluster.folder))
        except OSError:
            continue
        if is_ours and main_class in words and words[0].endswith(b"java"):
            found.append(int(place.name))
    return found


def executors(world: World) -> list[int]:
    """The executors' JVMs."""
    return containers(world, b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend")


def reading(world: World) -> list[int]:
    """Executors whose Python works on a task, or is about to."""
    return [
        pid
        for pid in executors(world)
        if any(b"python" in _program(child) for child in descendants(pid))
    ]


def _program(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return b""


def kill(pids: list[int]) -> None:
    """Kill processes with all that they have started."""
    for pid in pids:
        for each in [*descendants(pid), pid]:
            with_signal(each, signal.SIGKILL)


@contextmanager
def application(world: World) -> Iterator[list[Application]]:
    """What the event log says of the application that the block runs with
    :data:`READABLE`, at the end of the block.
    """
    before = set(world.cluster.hdfs.names("/spark-history"))
    found: list[Application] = []
    yield found
    (log,) = set(world.cluster.hdfs.names("/spark-history")) - before
    found.append(
        event_log.read(world.cluster.hdfs.read(f"/spark-history/{log}").decode().splitlines())
    )


def assert_cheap(cost: Application, manifest: dict[str, Any], *, may_build_index: bool) -> None:
    """A change that adds a job, a stage, tasks or files to a day fails here.

    The replicas of Rucio are read for the index, if it is not there. The logs are read
    once, and the small tables come in the same job. HTCondor's jobs are merged by their
    id before they are counted.
    """
    assert (cost.jobs, cost.stages, cost.failed_tasks) in (
        (1, 3, 0),
        *([(2, 5, 0)] if may_build_index else []),
    )
    assert cost.tasks <= 16
    tables = ("data_aggregation", "partials", "site_pairs", "crab_partials", "condor_ids")
    assert {name: entry["files"] for name, entry in manifest["tables"].items()} == dict.fromkeys(
        tables, 1
    )


@contextmanager
def a_world(
    folder: Path, further: tuple[str, ...] = (), realm: Realm | None = None
) -> Iterator[World]:
    """A cluster with a node, the day's logs and dumps on its first namespace; ended
    after the block.
    """
    packed = environment.packed()
    large = [folder / name for name in ("cms", "cache", "local", "home", "tmp")]
    hidden = [ROOT, folder / "state", *large]
    for place in hidden:
        place.mkdir(exist_ok=True)
    java = shutil.which("java") or "java"
    cluster = Cluster(
        folder / "daemons", find_spark({}).home, java, hidden=tuple(hidden), realm=realm
    )
    there = World(cluster, folder)
    options = f"{JAVA} {realm.java_option}" if realm else JAVA
    try:
        cluster.up(further)
        (folder / "settings.yaml").write_text(
            SETTINGS.format(port=cluster.ports["nodemanager-shuffle"], java=options)
        )
        (folder / "empty.yaml").write_text("{}")
        layout = LogLayout(per_part=500)
        make(
            there.local,
            DAY,
            days=len(DAYS),
            records=8_000,
            files=2_000,
            datasets=60,
            people=40,
            layout=layout,
        )
        cluster.hdfs.put_tree(there.local, "/")
        cluster.hdfs.put(packed, "/spark/environment.tar.gz")
        yield there
    finally:
        for process in there.running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        cluster.down()
        # Gigabytes that pytest would keep of three runs; what the daemons and
        # containers wrote to their logs stays.
        for place in (*large, folder / "fetched", cluster.folder / "data"):
            shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster with a node and two namespaces, for all tests that need it."""
    with a_world(tmp_path_factory.mktemp("cluster"), ("namenode-2",)) as there:
        yield there


@pytest.fixture()
def two_nodes(world: World) -> None:
    """From here on there is a second node: only who needs one waits until it has
    unpacked gigabytes of its own.
    """
    world.cluster.up(("nodemanager-2",))


@pytest.fixture(autouse=True)
def all_work(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds all daemons at work, and no application of the one before."""
    yield
    if "world" not in request.fixturenames:
        return
    world: World = request.getfixturevalue("world")
    for process in list(world.running):
        os.killpg(process.pid, signal.SIGKILL)
        world.end(process)
    for name in world.cluster.state["names"]:
        if name != "history":
            world.cluster.start(name)
    world.cluster.wait()
    for application in world.cluster.applications():
        if application["state"] not in ("FINISHED", "FAILED", "KILLED"):
            world.cluster.end(application["id"])
    until(lambda: not executors(world), "the end of the executors")
