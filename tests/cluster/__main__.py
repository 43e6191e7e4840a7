"""``bin/cluster up|down|status``."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from cmsspark.submit.host import find_spark
from tests.cluster.artifacts import cache
from tests.cluster.daemons import Cluster


def main() -> int:
    """Do what the words ask for."""
    parser = argparse.ArgumentParser(
        prog="bin/cluster", description="A real HDFS and YARN on this machine, for tests."
    )
    parser.add_argument("what", choices=("up", "down", "status"))
    parser.add_argument(
        "--dir",
        type=Path,
        default=cache().parent / "run",
        help="where all of it lives: %(default)s",
    )
    parser.add_argument(
        "--spark-home", type=Path, default=None, help="another Spark than this environment's"
    )
    parser.add_argument(
        "--second-namenode", action="store_true", help="a second namespace, for the results"
    )
    parser.add_argument(
        "--second-node", action="store_true", help="a second node of YARN, at 127.0.0.2"
    )
    parser.add_argument("--no-history", action="store_true", help="no history server")
    parser.add_argument("--remove", action="store_true", help="down: forget what was stored, too")
    given = parser.parse_args()
    cluster = Cluster(
        given.dir.absolute(),
        given.spark_home or find_spark({}).home,
        shutil.which("java") or "java",
    )
    if given.what == "up":
        further = ["namenode-2"] if given.second_namenode else []
        further += ["nodemanager-2"] if given.second_node else []
        further += [] if given.no_history else ["history"]
        begun = time.monotonic()
        cluster.up(tuple(further))
        say(f"up after {time.monotonic() - begun:.0f} s\n")
    elif given.what == "down":
        if given.remove:
            cluster.remove()
        else:
            cluster.down()
        return 0
    return status(cluster)


def status(cluster: Cluster) -> int:
    """What runs, where its pages are, and what to type next; 1 where nothing runs."""
    running = [name for name in cluster.state["names"] if cluster.pid(name)]
    for name in cluster.state["names"]:
        pid = cluster.pid(name)
        kind = f"{name}-http"
        host = "127.0.0.2" if name == "nodemanager-2" else "127.0.0.1"
        page = f"http://{host}:{cluster.ports[kind]}" if kind in cluster.ports else ""
        say(f"{name:<18}{f'pid {pid}' if pid else 'does not run':<16}{page}\n")
    if not running:
        say("nothing runs: bin/cluster up\n")
        return 1
    say(
        f"\n{cluster.active_nodes()} active nodes; {cluster.uri()}\nnext: . {cluster.folder}/env\n"
    )
    return 0


def say(text: str) -> None:
    """For people."""
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
