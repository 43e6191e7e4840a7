"""An application on YARN, as run_spark follows it: its id and page, whether it starts,
and why it failed.
"""

from __future__ import annotations

import getpass
import html
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from cmsspark.base.errors import Exit, NotReady, SettingsError

T = TypeVar("T")
#: What ``etc/log4j2.properties`` puts before lines of Spark's YARN client; newlines of
#: a message are `` | `` there.
MARK: Final = "@yarn_"
_PROPERTY: Final = re.compile(
    r"<property>\s*<name>\s*([^<\s]+)\s*</name>\s*<value>\s*([^<]*?)\s*</value>.*?</property>",
    re.DOTALL,
)
_APPLICATION: Final = re.compile(r"\b(application_\d+_\d+)\b")
_STATE: Final = re.compile(r"Application report for \S+ \(state: (\w+)\)")
_FIELD: Final = re.compile(r"(diagnostics|final status|tracking URL): (.*?)(?= \| \t |$)")
_EXITED: Final = re.compile(r"User application exited with (?:status )?(\d+)")
_OURS: Final = re.compile(r"^run_spark: .*(?:\n  (?:where|found|next): .*)*", re.MULTILINE)
_RAISED: Final = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE
)
#: A line that ends in a colon has its exception on the next one.
_OF_THE_JVM: Final = re.compile(
    r"^(?:Caused by: |Exception in thread \S+ |\S+ \S+ ERROR \S+ )(?:.*: *\n(?=\S).*|.*)",
    re.MULTILINE,
)
#: How a driver in client mode tells that YARN ended its application.
_GONE: Final = re.compile(r"YARN application has (?:exited unexpectedly|already ended)")
#: How a driver tells of a container that ended badly.
FAILED: Final = re.compile(r"(container_\w+) on host: \S+ Exit status: -?[1-9]")
_STATUS: Final = re.compile(r"container_\w+ on host: \S+ Exit status: (-?\d+)")
_SECTION: Final = re.compile(
    r"^LogType:(?P<name>\S+)\n(?:Log(?!Contents)[^\n]*\n)*LogContents:\n(?P<text>.*?)\nEnd of LogType:",
    re.MULTILINE | re.DOTALL,
)
_LOGS_DEADLINE_S: Final = 90
#: Where applications are submitted, unless the configuration names another port; seconds
#: for a connection.
_MANAGER_PORT: Final = 8032
NAMENODE_PORT: Final = 8020
_PATIENCE_S: Final = 3
#: Seconds after which a server that says nothing is silent.
_SILENCE_S: Final = 15
_LOG_BYTES: Final = 131_072

#: What a container wrote, by the name of the log: stdout, stderr.
Logs = Mapping[str, str]


def settings(environ: Mapping[str, str], file: str = "yarn-site.xml") -> dict[str, str]:
    """Return the properties of a file of the cluster's configuration; empty where it
    cannot be read.
    """
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        with suppress(OSError, UnicodeDecodeError):
            text = Path(environ.get(name) or "", file).read_text(encoding="utf-8")
            return dict(_PROPERTY.findall(text))
    return {}


def pages(properties: Mapping[str, str]) -> list[str]:
    """Return the web addresses of all ResourceManagers that a ``yarn-site.xml`` names."""
    scheme = "https" if properties.get("yarn.http.policy") == "HTTPS_ONLY" else "http"
    key = f"yarn.resourcemanager.webapp.{'https.' if scheme == 'https' else ''}address"
    port = 8090 if scheme == "https" else 8088
    return [f"{scheme}://{address}" for address in _addresses(properties, key, port)]


def _addresses(properties: Mapping[str, str], key: str, port: int) -> list[str]:
    """Return ``HOST:PORT`` of each ResourceManager: of the property ``key``, else its host
    and the usual port.
    """
    names = properties.get("yarn.resourcemanager.ha.rm-ids", "").split(",")
    suffixes = [f".{name.strip()}" for name in names if name.strip()]
    addresses = []
    for suffix in suffixes or [""]:
        host = properties.get(f"yarn.resourcemanager.hostname{suffix}")
        address = properties.get(f"{key}{suffix}") or (host and f"{host}:{port}")
        if address and "${" not in address:
            addresses.append(address)
    return addresses


def active_nodes(environ: Mapping[str, str]) -> int | None:
    """Return how many nodes YARN has for work, or None if its pages do not say."""
    return _answer(environ, "metrics", lambda answer: int(answer["clusterMetrics"]["activeNodes"]))


def node_sizes(environ: Mapping[str, str]) -> list[int]:
    """Return the bytes of memory that YARN gives on each node that runs; empty if its
    pages do not say.
    """

    def all_sizes(answer: Any) -> list[int]:
        nodes = (answer["nodes"] or {}).get("node", [])
        return [int(node["usedMemoryMB"]) + int(node["availMemoryMB"]) << 20 for node in nodes]

    return _answer(environ, "nodes?states=RUNNING", all_sizes) or []


def node_pages(environ: Mapping[str, str]) -> list[str]:
    """Return ``HOST:PORT`` of the page of each node that runs; empty if YARN's pages do
    not say.
    """

    def all_pages(answer: Any) -> list[str]:
        nodes = (answer["nodes"] or {}).get("node", [])
        return sorted({str(node["nodeHTTPAddress"]) for node in nodes})

    return _answer(environ, "nodes?states=RUNNING", all_pages) or []


def largest_container(environ: Mapping[str, str]) -> int | None:
    """Return the bytes of memory that YARN gives to a container at most, or None if its
    pages do not say.
    """
    limits = [max(all_sizes)] if (all_sizes := node_sizes(environ)) else []
    if megabytes := configured(environ, "yarn.scheduler.maximum-allocation-mb"):
        limits.append(int(megabytes) << 20)
    return min(limits, default=None)


def smallest_node(environ: Mapping[str, str]) -> int | None:
    """Return the bytes of memory that YARN gives on its smallest node, or None if its
    pages do not say.
    """
    return min(node_sizes(environ), default=None)


class Queue(msgspec.Struct, frozen=True):
    """A queue of YARN's capacity scheduler."""

    path: str
    is_leaf: bool
    #: RUNNING, STOPPED or DRAINING.
    state: str
    #: Its largest share of the cluster, and the one in use, 0 to 1.
    largest_share: float
    used_share: float


def queues(environ: Mapping[str, str]) -> dict[str, Queue] | None:
    """Return the queues of YARN's capacity scheduler by name and by path; None if its
    pages do not say, and for schedulers that make queues as they are named.
    """

    def all_queues(answer: Any) -> dict[str, Queue] | None:
        root = answer["scheduler"]["schedulerInfo"]
        entries = list(_queues_below(root))
        makes_queues = any(
            str(entry.get("autoCreationEligibility", "off")) != "off" for entry in entries
        )
        if root["type"] != "capacityScheduler" or makes_queues:
            return None
        return {
            str(entry[key]): Queue(
                str(entry.get("queuePath", "")),
                not (entry.get("queues") or {}).get("queue"),
                str(entry.get("state", "RUNNING")),
                float(entry.get("absoluteMaxCapacity", 100)) / 100,
                float(entry.get("absoluteUsedCapacity", 0)) / 100,
            )
            for entry in entries
            for key in ("queueName", "queuePath")
            if entry.get(key)
        }

    return _answer(environ, "scheduler", all_queues)


def queue_use(environ: Mapping[str, str], name: str) -> str:
    """Return words on how much of a queue is in use; empty if YARN's pages do not say."""
    queue = (queues(environ) or {}).get(name)
    if queue is None:
        return ""
    return f"; the queue {name} uses {queue.used_share:.0%} of YARN, of {queue.largest_share:.0%} at most"


def _queues_below(queue: Any) -> Iterator[Any]:
    yield queue
    for inner in (queue.get("queues") or {}).get("queue", []):
        yield from _queues_below(inner)


def configured(environ: Mapping[str, str], name: str) -> str:
    """Return a property as the ResourceManager has it, else as this host's
    ``yarn-site.xml`` does; empty where neither says.
    """
    from cmsspark.base.sockets import ConnectionLost
    from cmsspark.settings.http_client import fetch_text

    properties = settings(environ)
    for page in pages(properties):
        with suppress(ConnectionLost, ValueError):
            text = fetch_text(_as_user(f"{page}/conf?name={name}", environ), seconds=5)
            values: dict[str, str] = dict(_PROPERTY.findall(text))
            return values.get(name, "")
    return properties.get(name, "")


def diagnostics(environ: Mapping[str, str], application: str) -> str:
    """Return what YARN says of how an application ended; empty if its pages do not say."""
    path = f"apps/{application}"
    return _answer(environ, path, lambda answer: str(answer["app"].get("diagnostics") or "")) or ""


class Executors(msgspec.Struct, frozen=True):
    """What YARN has given to an application that runs, and what it asks for."""

    running: int
    awaited_bytes: int = 0
    queue: str = ""


def granted_executors(environ: Mapping[str, str], application: str) -> Executors:
    """Return the executors of an application that runs; none if YARN's pages do not say."""

    def read(answer: Any) -> Executors:
        app = answer["app"]
        uses = (app.get("resourceInfo") or {}).get("resourceUsagesByPartition", [])
        awaited = sum(int(use["pending"]["memory"]) for use in uses)
        master = 0 if app.get("unmanagedApplication") else 1
        return Executors(int(app["runningContainers"]) - master, awaited << 20, str(app["queue"]))

    return _answer(environ, f"apps/{application}", read) or Executors(0)


def master_log(environ: Mapping[str, str], application: str, name: str = "stderr") -> str:
    """Return the end of a log of an application's master, as its node has it; empty if
    YARN's pages do not show it.
    """
    from cmsspark.base.sockets import ConnectionLost
    from cmsspark.settings.http_client import fetch_text

    page = master_page(environ, application)
    if page is None:
        return ""
    with suppress(ConnectionLost, ValueError):
        address = _as_user(f"{page}/{name}/?start=-{_LOG_BYTES}", environ)
        text: str = fetch_text(address, seconds=5)
        return html.unescape(text.partition("<pre>")[2].rpartition("</pre>")[0])
    return ""


def master_page(environ: Mapping[str, str], application: str) -> str | None:
    """Return the page of the logs of an application's master; None if YARN's pages do not say."""
    path = f"apps/{application}"
    return _answer(environ, path, lambda answer: str(answer["app"]["amContainerLogs"]))


def _answer(environ: Mapping[str, str], path: str, read: Callable[[Any], T]) -> T | None:
    """Ask the resource managers in turn. None if they are secured, or cannot be reached from here."""
    from cmsspark.base.sockets import ConnectionLost  # help and lists come sooner without
    from cmsspark.settings.http_client import fetch_json

    for page in pages(settings(environ)):
        with suppress(ConnectionLost, ValueError, KeyError, TypeError):
            return read(fetch_json(_as_user(f"{page}/ws/v1/cluster/{path}", environ), seconds=5))
    return None


def _as_user(address: str, environ: Mapping[str, str]) -> str:
    """Return a page's address with the name of who asks: without one a YARN with access
    lists shows neither diagnostics nor logs.
    """
    user = environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return f"{address}{'&' if '?' in address else '?'}user.name={quote(user, safe='')}"


def check_nodes(environ: Mapping[str, str]) -> None:
    """Raise NotReady (75) where no node works, or each ResourceManager refuses connections:
    what is submitted then would wait, with YARN's settings for a quarter of an hour.
    Raises SettingsError (78) where the configuration names none, or no host that is there.
    """
    nodes = active_nodes(environ)
    if nodes == 0:
        raise NotReady(
            "YARN has no active node",
            where=pages(settings(environ))[0],
            next_step="try again later; that page shows what became of the nodes",
        )
    managers = _addresses(settings(environ), "yarn.resourcemanager.address", _MANAGER_PORT)
    if nodes is not None:
        return
    if managers and all(map(refuses, managers)):
        raise NotReady(
            "the ResourceManager of YARN does not answer",
            where=", ".join(managers),
            found="connection refused",
            next_step="run it again later; if it is another host, correct yarn-site.xml in HADOOP_CONF_DIR",
        )
    addresses = pages(settings(environ))
    if addresses and all(map(_is_silent, addresses)):
        raise NotReady(
            "the ResourceManager of YARN does not answer",
            where=", ".join(addresses),
            found=f"it takes connections and says nothing for {_SILENCE_S} s",
            next_step="run it again later; its administrators see why it is silent",
        )
    # Where nothing is named, Hadoop's default is this host.
    is_lacking = _names_no_manager(environ) and refuses(f"localhost:{_MANAGER_PORT}")
    if is_lacking or (managers and all(map(is_unknown, managers))):
        raise SettingsError(
            "yarn-site.xml names no ResourceManager"
            if is_lacking
            else "yarn-site.xml names a ResourceManager on a host that is not known here",
            where=environ.get("YARN_CONF_DIR") or environ.get("HADOOP_CONF_DIR"),
            found=", ".join(managers) or "no yarn.resourcemanager.hostname, and none on this host",
            next_step="fetch yarn-site.xml from the cluster, or correct yarn.resourcemanager.hostname",
        )


def _names_no_manager(environ: Mapping[str, str]) -> bool:
    """Return whether a ``yarn-site.xml`` that can be read says nothing of a ResourceManager."""
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        with suppress(OSError, UnicodeDecodeError):
            text = Path(environ.get(name) or "", "yarn-site.xml").read_text(encoding="utf-8")
            # Another file may say it.
            return "yarn.resourcemanager." not in text and ":include" not in text
    return False


def check_namenode(environ: Mapping[str, str]) -> None:
    """Raise NotReady (75) where the NameNode of ``fs.defaultFS`` refuses connections,
    SettingsError (78) where that names neither a host that is there nor a name service.
    """
    server = urlsplit(settings(environ, "core-site.xml").get("fs.defaultFS", ""))
    services = settings(environ, "hdfs-site.xml").get("dfs.nameservices", "").split(",")
    if server.scheme != "hdfs" or not server.hostname or server.hostname in services:
        return
    address = f"{server.hostname}:{server.port or NAMENODE_PORT}"
    if is_unknown(address):
        raise SettingsError(
            "fs.defaultFS names neither a host that is known here nor a name service",
            where="core-site.xml",
            found=server.geturl(),
            next_step="fetch the cluster's hdfs-site.xml into HADOOP_CONF_DIR, or correct the name",
        )
    check_listens(address, "fs.defaultFS in core-site.xml")


def check_listens(address: str, origin: str) -> None:
    """Raise NotReady (75) where a NameNode refuses connections at ``HOST:PORT``, which
    ``origin`` names.
    """
    if refuses(address):
        raise NotReady(
            "the NameNode of HDFS does not answer",
            where=address,
            found="connection refused",
            next_step=f"run it again later; if it is another host, correct {origin}",
        )


def refuses(address: str) -> bool:
    """Return whether nothing listens at ``HOST:PORT``. What cannot be reached from here may."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _is_silent(page: str) -> bool:
    """Return whether a server takes connections and does not answer: one that is hung. What
    cannot be reached from here may answer.
    """
    parts = urlsplit(page)
    try:
        with socket.create_connection((parts.hostname, parts.port), _PATIENCE_S) as link:
            link.settimeout(_SILENCE_S)
            # Whatever it speaks, this has an answer or an end.
            link.sendall(b"GET /ws/v1/cluster/info HTTP/1.0\r\n\r\n")
            try:
                link.recv(1)
            except TimeoutError:
                return True
    except OSError:
        pass
    return False


def is_unknown(address: str) -> bool:
    """Return whether no name server and no file of this host knows the host of ``HOST:PORT``."""
    try:
        socket.getaddrinfo(address.rpartition(":")[0], None)
    except socket.gaierror as error:
        return error.errno != socket.EAI_AGAIN
    return False


class Application(msgspec.Struct):
    """What spark-submit has said of the application that it submitted."""

    log: Callable[[str], None]
    id: str | None = None
    state: str | None = None
    page: str | None = None
    diagnostics: str = ""
    #: Why YARN has not started it, as it was said last.
    wait_reason: str = ""
    #: The container that ended badly last.
    failed: str | None = None
    #: Whether the driver says that YARN ended it.
    is_gone: bool = False
    began: float = msgspec.field(default_factory=time.monotonic)

    def hear(self, text: str) -> None:
        """Take in a message of Spark's YARN client, without its mark."""
        named = _APPLICATION.search(text)
        if named and self.id is None:
            self.id = named.group(1)
            self.log(f"submitted to YARN as {self.id}")
        state = _STATE.search(text)
        if state:
            self._now(state.group(1))
        fields = {name: value.strip(" |\t") for name, value in _FIELD.findall(text)}
        if "diagnostics" in fields and fields["diagnostics"] not in ("", "N/A"):
            self.diagnostics = fields["diagnostics"]
        page = fields.get("tracking URL", "")
        if page.startswith("http") and self.page is None:
            self.page = page
            self.log(f"follow it at {page}")

    def overhear(self, line: str) -> None:
        """Take in a line of the driver's own, in client mode: it tells of containers
        that ended badly.
        """
        failed = FAILED.search(line)
        if failed:
            self.failed = failed.group(1)
        elif self.id and _GONE.search(line):
            self.is_gone = True
            self.failed = self.failed or f"{self.id.replace('application', 'container')}_01_000001"

    def _now(self, state: str) -> None:
        if state == "RUNNING" and self.state != "RUNNING":
            self.log(f"it runs after {time.monotonic() - self.began:.0f} s")
        self.state = state

    @property
    def has_started(self) -> bool:
        """False while YARN has not given it a container."""
        return self.state not in (None, "NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")

    @property
    def job_code(self) -> int | None:
        """The job's exit code in YARN's diagnostics; None if the application ended without one."""
        codes = _EXITED.findall(self.diagnostics)
        return int(codes[-1]) if codes and int(codes[-1]) else None

    def exit_code(self) -> int:
        """Return the job's exit code, or 75 if the application ended without one."""
        return int(Exit.NOT_READY) if self.job_code is None else self.job_code


def last_error(logs: Mapping[str, Logs]) -> tuple[str, str]:
    """Return the container that failed and what it says: our message, else the last
    exception, else the end.
    """
    drivers = [name for name in logs if name.endswith("_000001")]
    failed = [
        name
        for driver in drivers
        for name in FAILED.findall(logs[driver].get("stderr", ""))
        if name in logs
    ]
    if not logs:
        return "", ""
    name = (failed or drivers or sorted(logs))[-1]
    stdout, stderr = logs[name].get("stdout", ""), logs[name].get("stderr", "")
    for pattern, text in ((_OURS, stdout), (_RAISED, stdout), (_OF_THE_JVM, stderr)):
        matches = list(pattern.finditer(text))
        if matches:
            return name, matches[-1].group(matches[-1].lastindex or 0).strip()
    return name, "\n".join((stdout.strip() or stderr.strip()).splitlines()[-3:])


def executors_failed(diagnostics_text: str, logs: Mapping[str, Logs]) -> bool:
    """Return whether an application ended because its executors did, each by an exception
    of its own (1) and not from outside.
    """
    masters = [text.get("stderr", "") for name, text in logs.items() if name.endswith("_000001")]
    statuses = {status for text in masters for status in _STATUS.findall(text)}
    return "Max number of executor failures" in diagnostics_text and statuses == {"1"}


def collects_logs(environ: Mapping[str, str]) -> bool:
    """Return whether YARN collects what containers wrote, as far as its configuration says."""
    return configured(environ, "yarn.log-aggregation-enable") != "false"


def fetch_logs(application: str, submit: str, environ: Mapping[str, str]) -> dict[str, Logs]:
    """Return what the application's containers wrote, by container; of the master alone
    where the job says there itself what is wrong, or where YARN does not collect it; and
    empty where YARN does not give it.
    """
    masters = re.findall(r"/(container_\w+)/", master_page(environ, application) or "")
    kinds = ("stdout", "stderr")
    logs: dict[str, Logs] = {
        name: {kind: master_log(environ, application, kind) for kind in kinds} for name in masters
    }
    # What is collected comes later, and takes a JVM.
    if any(
        _OURS.search(log["stdout"]) and not FAILED.search(log["stderr"]) for log in logs.values()
    ):
        return logs
    collected: dict[str, Logs] = {}
    if collects_logs(environ):
        with tempfile.TemporaryDirectory(prefix="cmsspark-logs-") as folder:
            _ask_yarn(["logs", application, folder], submit, environ)
            for file in sorted(Path(folder).rglob("container_*")):
                text = file.read_text(encoding="utf-8", errors="replace")
                collected[file.name] = sections(text)
    return collected or logs


def sections(text: str) -> Logs:
    """Return the logs in a file of YARN's, by name."""
    return {match["name"]: match["text"] for match in _SECTION.finditer(text)}


def kill(application: str, submit: str, environ: Mapping[str, str]) -> bool:
    """End an application; False where YARN did not take it."""
    return _ask_yarn(["kill", application], submit, environ)


def _ask_yarn(argv: list[str], submit: str, environ: Mapping[str, str]) -> bool:
    # Spark's jars have YARN's client, but not its commands: a JVM that does only this.
    script = str(Path(__file__).with_name("yarn_client.py"))
    python = f"spark.pyspark.driver.python={sys.executable}"
    command = [submit, "--master", "local[1]", "--conf", python, script, *argv]
    try:
        run = subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            timeout=_LOGS_DEADLINE_S,
            check=False,
            cwd=os.sep,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0
