"""HDFS, YARN and Spark's history server as real daemons on this machine, in one folder.
For developers and tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import artifacts, configuration, kdc
from tests.cluster.webhdfs import WebHdfs

CLASSES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "namenode-2": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "nodemanager-2": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "history": "org.apache.spark.deploy.history.HistoryServer",
}
BASE = ("namenode", "datanode", "resourcemanager", "nodemanager")
#: The Maven jars carry no web pages; without these folders the web servers do not start.
WEBAPPS = ("hdfs", "datanode", "secondary", "static", "cluster", "node")
#: State stores, and what learns from data: every node would fetch and unpack them.
UNUSED_JARS = ("rocksdbjni-", "spark-mllib_", "breeze", "spire", "cats-kernel_")
DEADLINE_S = 300
#: Runs what follows `--` with the folders before it empty.
_HIDE = (
    'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'
)
_APART = ("unshare", "--mount", "sh", "-c", _HIDE, "sh", "--")


@dataclass
class Cluster:
    """Daemons that live in ``folder``; what runs is in ``state.json`` there."""

    folder: Path
    spark_home: Path
    java: str = "java"

    #: Folders of this host that its nodes do not see, where this account may hide them.
    hidden: tuple[Path, ...] = ()
    #: The Kerberos realm of a secured cluster; its KDC runs.
    realm: kdc.Realm | None = None
    #: Those that this process started.
    own: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state: dict[str, Any] = {"ports": {}, "pids": {}, "names": []}
        file = self.folder / "state.json"
        if file.is_file():
            self.state = json.loads(file.read_text(encoding="utf-8"))

    @property
    def ports(self) -> dict[str, int]:
        """Port by name (``configuration.PORTS``)."""
        return dict(self.state["ports"])

    @property
    def env(self) -> dict[str, str]:
        """What a client needs in its environment, besides this Spark."""
        return {**configuration.environment(self.folder), "SPARK_HOME": str(self.spark_home)}

    @property
    def hdfs(self) -> WebHdfs:
        """The first namespace."""
        return self.hdfs_of("namenode")

    def hdfs_of(self, name: str) -> WebHdfs:
        """The namespace of that NameNode."""
        base = f"http://{'localhost' if self.realm else '127.0.0.1'}:{self.ports[f'{name}-http']}"
        return WebHdfs(
            base, configuration.user(), self.realm.delegation(base) if self.realm else None
        )

    def uri(self, name: str = "namenode") -> str:
        """``hdfs://HOST:PORT`` of a namespace."""
        return f"hdfs://127.0.0.1:{self.ports[f'{name}-rpc']}"

    def up(self, further: tuple[str, ...] = ()) -> None:
        """Start what does not run yet and wait until all work; a folder's data stay
        between two ups.
        """
        jars = artifacts.jars()
        names = [name for name in CLASSES if name in (*BASE, *further, *self.state["names"])]
        self.state["ports"] = {**configuration.free_ports(), **self.state["ports"]}
        self.state["names"] = names
        for part in ("logs", "data/tmp", *(f"webroot/webapps/{name}" for name in WEBAPPS)):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        security = kdc.properties(self.realm) if self.realm else {}
        configuration.write_all(
            self.folder, jars, self.spark_home, self.ports, self.state["names"], security
        )
        self._save()
        self._format([name for name in names if name.startswith("namenode")])
        for name in names:
            if name != "history":
                self.start(name)
        self.wait()
        self._furnish()
        if "history" in names:
            self.start("history")

    def _format(self, namenodes: list[str]) -> None:
        """Make the namespaces that are not there yet, all at once: each takes a JVM."""
        new = [
            name for name in namenodes if not (self.folder / "data" / name / "current").is_dir()
        ]
        options = ("-format", "-force", "-nonInteractive", "-clusterId", "cmsspark")
        with ThreadPoolExecutor(max(1, len(new))) as pool:
            # Its errors are raised when the results are taken.
            list(
                pool.map(
                    lambda name: self._run(
                        [*self._java(name), CLASSES[name], *options], f"{name}-format"
                    ),
                    new,
                )
            )

    def start(self, name: str) -> None:
        """Start one daemon unless it runs."""
        if self.pid(name):
            return
        log = self.folder / "logs" / f"{name}.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*self._apart(name), *self._java(name), CLASSES[name]],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=self.folder,
                # Nothing of the shell that started it may reach a container, PYTHONPATH
                # least of all.
                env={**_environment(), "HADOOP_CONF_DIR": str(self.folder / f"conf-{name}")},
                start_new_session=True,
            )
        self.own[name] = process
        self.state["pids"][name] = [process.pid, _birth(process.pid)]
        self._save()

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one daemon and wait until its ports are free."""
        pid = self.pid(name)
        if pid:
            os.kill(pid, number)
            try:
                until(lambda: self.pid(name) is None, f"the end of {name}", 30)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                until(lambda: self.pid(name) is None, f"the end of {name}")
        if name in self.own:
            self.own.pop(name).wait()

    def signal(self, name: str, number: int) -> None:
        """Send a running daemon a signal (SIGSTOP, SIGCONT)."""
        pid = self.pid(name)
        assert pid is not None, f"{name} does not run"
        os.kill(pid, number)

    def down(self) -> None:
        """End all daemons; what they stored stays."""
        # A node says goodbye to YARN and brings logs to HDFS; without them it would try
        # for half a minute.
        first = [name for name in CLASSES if name.startswith("nodemanager") or name == "history"]
        for names in (first, [name for name in CLASSES if name not in first]):
            for name in names:
                pid = self.pid(name)
                if pid:
                    os.kill(pid, signal.SIGTERM)
            for name in names:
                self.stop(name)

    def remove(self) -> None:
        """End all daemons and forget what they stored."""
        self.down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pid(self, name: str) -> int | None:
        """The process of a daemon that runs; a zombie, and another process of the same
        number, is none.
        """
        found = self.state["pids"].get(name)
        if found is None or _birth(found[0]) != found[1]:
            return None
        return int(found[0])

    def wait(self, nodes: int | None = None) -> None:
        """Until HDFS takes files and as many nodes of YARN are active as should be."""
        wanted = sum(
            name.startswith("nodemanager") and self.pid(name) is not None
            for name in self.state["names"]
        )
        until(self._hdfs_works, f"HDFS (see {self.folder}/logs)")
        until(
            lambda: self.active_nodes() == (wanted if nodes is None else nodes),
            f"YARN (see {self.folder}/logs)",
        )

    def _hdfs_works(self) -> bool:
        names = [name for name in self.state["names"] if name.startswith("namenode")]
        return all(self._namenode_works(name) for name in names)

    def _namenode_works(self, name: str) -> bool:
        found = self._get(
            f"{name}-http", "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        )
        beans = found.get("beans") or [{}]
        return beans[0].get("FSState") == "Operational" and beans[0].get("NumLiveDataNodes") == 1

    def active_nodes(self) -> int:
        """Nodes that YARN may use; -1 while it does not answer."""
        found = self._get("resourcemanager-http", "/ws/v1/cluster/metrics")
        return int(found.get("clusterMetrics", {}).get("activeNodes", -1))

    def applications(self) -> list[dict[str, Any]]:
        """What the ResourceManager knows of each application."""
        found = self._get("resourcemanager-http", "/ws/v1/cluster/apps")
        return list((found.get("apps") or {}).get("app") or [])

    def end(self, application: str) -> None:
        """End an application."""
        base = f"http://127.0.0.1:{self.ports['resourcemanager-http']}/ws/v1/cluster/apps/{application}/state"
        data = b'{"state": "KILLED"}'
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{base}?user.name={configuration.user()}", data, headers, method="PUT"
        )
        urllib.request.urlopen(request, timeout=30).close()

    def _get(self, port: str, path: str) -> dict[str, Any]:
        try:
            if self.realm:
                return dict(
                    json.loads(self.realm.get(f"http://localhost:{self.ports[port]}{path}"))
                )
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports[port]}{path}", timeout=5
            ) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def _furnish(self) -> None:
        """The folders that a cluster has, and Spark's jars."""
        hdfs = self.hdfs
        for path, mode in (
            ("/tmp", "1777"),
            ("/app-logs", "1777"),
            ("/spark-history", "1777"),
            ("/spark", "755"),
        ):
            hdfs.make_dirs(path, mode)
        hdfs.make_dirs(f"/user/{configuration.user()}", "755")
        jars = sorted((self.spark_home / "jars").glob("*.jar"))
        size = sum(jar.stat().st_size for jar in jars)
        if self.state.get("spark") == [str(self.spark_home), size]:
            return
        archive = zipped(self.spark_home, self.folder / "spark.zip")
        hdfs.put(archive, "/spark/spark.zip")
        archive.unlink()
        self.state["spark"] = [str(self.spark_home), size]
        self._save()

    @property
    def hides(self) -> bool:
        """Whether nodes are kept from the hidden folders: that takes a mount namespace
        of their own.
        """
        command = [*_APART, "true"]
        return (
            bool(self.hidden)
            and subprocess.run(command, capture_output=True, check=False).returncode == 0
        )

    def _apart(self, name: str) -> list[str]:
        if not name.startswith("nodemanager") or not self.hides:
            return []
        return [*_APART[:-1], *map(str, self.hidden), "--"]

    def _java(self, name: str) -> list[str]:
        logs = self.folder / "logs"
        own = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dyarn.log.dir={logs}"]
        own += [
            f"-Dhadoop.log.dir={logs}",
            "-Dcluster.level=INFO",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
        ]
        own += [f"-Dcmsspark.cluster={name}", *([self.realm.java_option] if self.realm else [])]
        conf, root = self.folder / f"conf-{name}", self.folder / "webroot"
        if name == "history":
            defaults = configuration.spark_defaults(self.ports)
            own += [
                f"-D{key}={value}"
                for key, value in defaults.items()
                if key.startswith("spark.history")
            ]
            own += [
                f"-Dspark.history.ui.port={self.ports['history-http']}",
                "-Dspark.history.fs.update.interval=2s",
            ]
            return [self.java, *own, "-cp", f"{conf}:{self.spark_home}/jars/*"]
        return [self.java, *own, "-cp", f"{conf}:{root}:{artifacts.cache()}/hadoop/*"]

    def _run(self, words: list[str], log: str) -> None:
        with (self.folder / "logs" / f"{log}.log").open("wb") as stream:
            subprocess.run(
                words,
                stdout=stream,
                stderr=stream,
                check=True,
                cwd=self.folder,
                timeout=DEADLINE_S,
            )

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / "state.json.part"
        aside.write_text(json.dumps(self.state, indent=1), encoding="utf-8")
        aside.replace(self.folder / "state.json")


def zipped(spark_home: Path, archive: Path) -> Path:
    """Spark's jars as ``spark.yarn.archive`` wants them, without a quarter that no
    container here uses.
    """
    with zipfile.ZipFile(archive, "w") as target:
        for jar in sorted((spark_home / "jars").glob("*.jar")):
            if not jar.name.startswith(UNUSED_JARS):
                target.write(jar, jar.name)
    return archive


def until(holds: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Ask again and again, up to a deadline; TimeoutError names what was waited for."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.2)


def _environment() -> dict[str, str]:
    return {
        name: os.environ[name]
        for name in ("HOME", "JAVA_HOME", "LANG", "PATH", "USER")
        if name in os.environ
    }


def _birth(pid: int) -> str | None:
    """When a process was started, in ticks; None for one that is gone or a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
