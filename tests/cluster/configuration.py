"""The daemons' and their clients' configuration files: one machine, loopback addresses,
ports of one's own.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tests import ports as ports_of_tests

#: What one node offers: containers are counted against it, nothing reserves it.
NODE_MB = 6_144
NODE_CORES = 8
#: A second node has an address of its own: YARN tells nodes apart by it.
HOSTS = {"nodemanager": "127.0.0.1", "nodemanager-2": "127.0.0.2"}
PORTS = (
    *(f"{name}-{kind}" for name in ("namenode", "namenode-2") for kind in ("rpc", "http")),
    *("datanode-data", "datanode-ipc", "datanode-http"),
    *(f"resourcemanager-{kind}" for kind in ("rpc", "scheduler", "tracker", "admin", "http")),
    *(f"{name}-{kind}" for name in HOSTS for kind in ("rpc", "localizer", "http", "shuffle")),
    "history-http",
)

#: What clients call: a command's first word, and the class that takes the others (an
#: application's takes all).
COMMANDS = {
    "hdfs": {
        "dfs": "org.apache.hadoop.fs.FsShell",
        "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
    },
    "yarn": {
        "application": "org.apache.hadoop.yarn.client.cli.ApplicationCLI",
        "logs": "org.apache.hadoop.yarn.client.cli.LogsCLI",
        "node": "org.apache.hadoop.yarn.client.cli.NodeCLI",
    },
}


def free_ports() -> dict[str, int]:
    """A free port for each name, all different."""
    return dict(zip(PORTS, ports_of_tests.free_ports(len(PORTS)), strict=True))


def write_all(
    folder: Path,
    jars: Path,
    spark_home: Path,
    ports: Mapping[str, int],
    names: Iterable[str],
    security: Mapping[str, Mapping[str, str]],
) -> None:
    """``conf/`` for clients, ``conf-NAME/`` for each daemon, ``spark-conf/``, and
    ``env`` to source.

    ``security`` holds further properties by the name of the file.
    """
    _write(folder / "conf", folder, jars, ports, "nodemanager", "namenode", names, security)
    for name in names:
        node = name if name in HOSTS else "nodemanager"
        namenode = name if name.startswith("namenode") else "namenode"
        _write(folder / f"conf-{name}", folder, jars, ports, node, namenode, names, security)
    settings = spark_defaults(ports)
    (folder / "spark-conf").mkdir(exist_ok=True)
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "spark-conf" / "spark-defaults.conf").write_text(lines, encoding="utf-8")
    values = environment(folder)
    text = "".join(f"export {name}={value}\n" for name, value in values.items())
    text += f"export SPARK_HOME={spark_home}\nexport PATH={folder}/bin:$PATH\n"
    (folder / "env").write_text(text, encoding="utf-8")
    _commands(folder, jars)


def environment(folder: Path) -> dict[str, str]:
    """What a client needs in its environment."""
    return {"HADOOP_CONF_DIR": str(folder / "conf"), "SPARK_CONF_DIR": str(folder / "spark-conf")}


def _commands(folder: Path, jars: Path) -> None:
    """``bin/hdfs`` and ``bin/yarn``, as an edge node has them, with the daemons' own jars."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, classes in COMMANDS.items():
        cases = "\n".join(
            f"    {word}) class={one}; {'' if one.endswith('ApplicationCLI') else 'shift'} ;;"
            for word, one in classes.items()
        )
        script = folder / "bin" / name
        script.write_text(
            f'#!/bin/sh\ncase "${{1:-}}" in\n{cases}\n'
            f'    *) echo "{name}: here only {", ".join(classes)}" >&2; exit 2 ;;\nesac\n'
            f': "${{HADOOP_CONF_DIR:={folder}/conf}}"\n'
            "exec ${JAVA_HOME:+$JAVA_HOME/bin/}java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
            f'-cp "$HADOOP_CONF_DIR:{jars}/hadoop/*" "$class" "$@"\n',
            encoding="utf-8",
        )
        script.chmod(0o755)


def _write(
    conf: Path,
    folder: Path,
    jars: Path,
    ports: Mapping[str, int],
    node: str,
    namenode: str,
    names: Iterable[str],
    security: Mapping[str, Mapping[str, str]],
) -> None:
    conf.mkdir(parents=True, exist_ok=True)
    core = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{ports[f'{namenode}-rpc']}",
        "hadoop.tmp.dir": f"{folder}/data/tmp",
        # Clients of these daemons notice within seconds that one is down.
        "ipc.client.connect.max.retries": "5",
        "ipc.client.connect.retry.interval": "1000",
    }
    sites = {
        "core-site.xml": core,
        "hdfs-site.xml": _hdfs(folder, ports, namenode, names),
        "yarn-site.xml": _yarn(folder, jars, ports, node),
    }
    for name, values in sites.items():
        _xml(conf / name, {**values, **security.get(name, {})})
    queues = {
        "root.queues": "default,cms",
        "root.default.capacity": "50",
        "root.cms.capacity": "50",
    }
    queues |= {f"root.{name}.maximum-capacity": "100" for name in ("default", "cms")}
    queues |= {"maximum-am-resource-percent": "0.9"}
    queues |= {f"root.{name}.user-limit-factor": "2" for name in ("default", "cms")}
    _xml(
        conf / "capacity-scheduler.xml",
        {f"yarn.scheduler.capacity.{key}": value for key, value in queues.items()},
    )
    (conf / "log4j.properties").write_text(
        # Daemons say INFO; a client's stdout is for what it was asked.
        "cluster.level=WARN\nlog4j.rootLogger=${cluster.level},console\n"
        "log4j.appender.console=org.apache.log4j.ConsoleAppender\nlog4j.appender.console.target=System.err\n"
        "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n\n",
        encoding="utf-8",
    )


def _hdfs(
    folder: Path, ports: Mapping[str, int], namenode: str, names: Iterable[str]
) -> dict[str, str]:
    values = {
        "dfs.replication": "1",
        "dfs.blocksize": str(16 << 20),
        "dfs.namenode.name.dir": f"{folder}/data/{namenode}",
        "dfs.namenode.http-address": f"127.0.0.1:{ports[f'{namenode}-http']}",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.heartbeat.recheck-interval": "2000",
        "dfs.heartbeat.interval": "1",
        "dfs.datanode.data.dir": f"{folder}/data/datanode",
        # As YARN names the first node, so that executors find what is near.
        "dfs.datanode.hostname": "localhost",
        "dfs.datanode.address": f"127.0.0.1:{ports['datanode-data']}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{ports['datanode-ipc']}",
        "dfs.datanode.http.address": f"127.0.0.1:{ports['datanode-http']}",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    }
    if "namenode-2" in names:
        # One DataNode serves both namespaces, as with federation.
        values["dfs.nameservices"] = "one,two"
        for service, name in (("one", "namenode"), ("two", "namenode-2")):
            values[f"dfs.namenode.rpc-address.{service}"] = f"127.0.0.1:{ports[f'{name}-rpc']}"
            values[f"dfs.namenode.http-address.{service}"] = f"127.0.0.1:{ports[f'{name}-http']}"
        values["dfs.nameservice.id"] = "two" if namenode == "namenode-2" else "one"
    return values


def _yarn(folder: Path, jars: Path, ports: Mapping[str, int], node: str) -> dict[str, str]:
    manager = {
        "": "rpc",
        "scheduler.": "scheduler",
        "resource-tracker.": "tracker",
        "admin.": "admin",
    }
    values = {
        f"yarn.resourcemanager.{key}address": f"127.0.0.1:{ports[f'resourcemanager-{kind}']}"
        for key, kind in manager.items()
    }
    host = HOSTS[node]
    return values | {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.resourcemanager.webapp.address": f"127.0.0.1:{ports['resourcemanager-http']}",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "500",
        # A queue gets its half back within seconds: the youngest containers of the
        # other are preempted.
        "yarn.resourcemanager.scheduler.monitor.enable": "true",
        "yarn.resourcemanager.monitor.capacity.preemption.monitoring_interval": "500",
        "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": "500",
        "yarn.resourcemanager.monitor.capacity.preemption.total_preemption_per_round": "1.0",
        "yarn.resourcemanager.monitor.capacity.preemption.natural_termination_factor": "1.0",
        "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.scheduler.maximum-allocation-mb": str(NODE_MB),
        "yarn.scheduler.maximum-allocation-vcores": str(NODE_CORES),
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.address": f"{host}:{ports[f'{node}-rpc']}",
        "yarn.nodemanager.localizer.address": f"{host}:{ports[f'{node}-localizer']}",
        "yarn.nodemanager.webapp.address": f"{host}:{ports[f'{node}-http']}",
        "yarn.nodemanager.local-dirs": f"{folder}/data/{node}/local",
        "yarn.nodemanager.log-dirs": f"{folder}/logs/{node}",
        "yarn.nodemanager.resource.memory-mb": str(NODE_MB),
        "yarn.nodemanager.resource.cpu-vcores": str(NODE_CORES),
        "yarn.nodemanager.vmem-check-enabled": "false",
        # Without control groups the node itself must look: by default it leaves that to them.
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.container-monitor.interval-ms": "500",
        # Asked for, though with 3.4.2 mapped pages were seen to count for each process
        # all the same.
        "yarn.nodemanager.container-monitor.procfs-tree.smaps-based-rss.enabled": "true",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        "yarn.nodemanager.aux-services": "spark_shuffle",
        "yarn.nodemanager.aux-services.spark_shuffle.class": "org.apache.spark.network.yarn.YarnShuffleService",
        "yarn.nodemanager.aux-services.spark_shuffle.classpath": f"{jars}/shuffle/*",
        "spark.shuffle.service.port": str(ports[f"{node}-shuffle"]),
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/app-logs",
    }


def spark_defaults(ports: Mapping[str, int]) -> dict[str, str]:
    """What an administrator would put into spark-defaults.conf, and what makes Spark small here."""
    name = f"hdfs://127.0.0.1:{ports['namenode-rpc']}"
    return {
        "spark.eventLog.dir": f"{name}/spark-history",
        "spark.yarn.historyServer.address": f"http://127.0.0.1:{ports['history-http']}",
        "spark.history.fs.logDirectory": f"{name}/spark-history",
        "spark.yarn.archive": f"{name}/spark/spark.zip",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.yarn.am.memory": "512m",
    }


def _xml(file: Path, values: Mapping[str, str]) -> None:
    rows = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in values.items()
    )
    file.write_text(f"<configuration>\n{rows}</configuration>\n", encoding="utf-8")


def user() -> str:
    """Who the daemons think we are."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
