"""What a real cluster says of a measured run: event logs on HDFS, killed containers,
nodes, drivers out of reach.
"""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import ROOT, Ended, World

pytestmark = pytest.mark.cluster

SCRIPTS = Path(__file__).with_name("scripts")
LOOKS = str(SCRIPTS / "looks.py")
ONE = ("--num-executors", "1", "--conf", "spark.dynamicAllocation.enabled=false")


def shown(world: World, name: str) -> dict[str, Any]:
    """A measured run, by its id or that of its application."""
    ended = world.cmsspark("show", name, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)  # type: ignore[no-any-return]


def latest(world: World) -> dict[str, Any]:
    """The run that was measured last."""
    folder = world.folder / "state" / "monitor" / "runs"
    return shown(world, max(entry.name for entry in folder.iterdir()))


def application(ended: Ended) -> str:
    (name,) = set(re.findall(r"application_\d+_\d+", ended.err))
    return str(name)


def codes(metrics: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in metrics.get("findings", [])]


def memory_of_nodes(world: World) -> list[int]:
    url = f"http://127.0.0.1:{world.cluster.ports['resourcemanager-http']}/ws/v1/cluster/nodes?states=RUNNING"
    with urllib.request.urlopen(url, timeout=30) as answer:
        nodes = json.load(answer)["nodes"]["node"]
    return [(node["usedMemoryMB"] + node["availMemoryMB"]) << 20 for node in nodes]


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_the_event_log_of_a_run_is_found_on_hdfs_and_read_once(world: World, mode: str) -> None:
    ended = world.run(LOOKS, "--yarn", "--deploy-mode", mode, *ONE, str(ROOT / "setup.py"))
    assert ended.code == 0
    first = world.cmsspark("show", application(ended))
    assert first.code == 0 and "reading event logs in hdfs:" in first.err, first.err
    assert re.search(r"tasks => [1-9]", first.out) and "java" not in first.out
    metrics = shown(world, application(ended))
    assert metrics["event_log"].startswith("hdfs:") and metrics["totals"]["tasks"] >= 1
    assert (
        metrics["deploy_mode"] == mode and codes(metrics) == [] and metrics.get("notes", []) == []
    )
    assert metrics["smallest_node_bytes"] == min(memory_of_nodes(world)), (
        "asked of the ResourceManager"
    )
    executor = next(entry for entry in metrics["executors"] if entry["executor"] != "driver")
    assert executor["peaks"]["JVMHeapMemory"] > 0
    again = world.cmsspark("lab", "advise", "looks.py")
    assert (
        again.code == 0 and "reading event logs" not in again.err and "executor heap" in again.out
    )
    direct = world.cmsspark("monitor", "events", metrics["event_log"])
    assert direct.code == 0 and re.search(r"tasks => [1-9]", direct.out)


def test_a_container_that_yarn_kills_for_its_memory_is_named(world: World) -> None:
    small = ("--conf", "spark.executor.memoryOverhead=600m", "--conf", "spark.task.maxFailures=1")
    ended = world.run(str(SCRIPTS / "greedy.py"), "--yarn", *ONE, *small)
    assert ended.code != 0
    metrics = latest(world)
    finding = next(
        finding for finding in metrics["findings"] if finding["code"] == "container_killed"
    )
    assert finding["severity"] == "error" and "memoryOverhead" in finding["cure"]
    advised = world.cmsspark("lab", "advise", "greedy.py")
    assert "spark.executor.memoryOverhead=" in advised.out


def test_an_executor_that_no_node_can_hold_is_named_without_being_told_of_the_nodes(
    world: World,
) -> None:
    ended = world.run(LOOKS, "--yarn", "--executor-memory", "900g", *ONE, str(ROOT / "setup.py"))
    assert ended.code != 0
    metrics = latest(world)
    assert "executor_too_large" in codes(metrics), metrics


def test_a_driver_that_nodes_cannot_reach_is_named(world: World) -> None:
    # An address for documentation: nobody has it.
    away = (
        "--conf",
        "spark.driver.host=192.0.2.1",
        "--conf",
        "spark.driver.bindAddress=127.0.0.1",
    )
    short = ("--conf", "spark.yarn.am.waitTime=10s", "--conf", "spark.rpc.askTimeout=10s")
    ended = world.run(LOOKS, "--yarn", *ONE, *away, *short, str(ROOT / "setup.py"))
    assert ended.code != 0
    metrics = latest(world)
    assert "driver_unreachable" in codes(metrics), metrics
