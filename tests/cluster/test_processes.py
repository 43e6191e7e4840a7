"""The process trees of two real NodeManagers, printed while a job runs in their containers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cmsspark.apps.monitor.processes.node import NodeReader
from cmsspark.store.process_samples import open_processes
from tests.cluster.conftest import ROOT, World

pytestmark = pytest.mark.cluster

LOOKS = Path(__file__).with_name("scripts") / "looks.py"


@pytest.mark.usefixtures("two_nodes")
def test_two_nodemanagers_are_watched_with_the_containers_that_they_start(
    world: World, tmp_path: Path
) -> None:
    managers = [world.cluster.pid(name) for name in ("nodemanager", "nodemanager-2")]
    assert None not in managers
    nodes = [
        world.start(
            *("monitor", "node", "--run", "suite-1", "--pid", str(pid), "--interval", "0.5"),
            program="from cmsspark.main import main; main()",
        )
        for pid in managers
    ]
    threads = []
    for node in nodes:
        assert node.stdout is not None
        reader = NodeReader(tmp_path, print)
        threads.append(threading.Thread(target=reader.read, args=(node.stdout.buffer,)))
        threads[-1].start()
    executors = ("--num-executors", "2", "--conf", "spark.dynamicAllocation.enabled=false")
    assert world.run(str(LOOKS), "--yarn", *executors, str(ROOT / "setup.py")).code == 0
    for node, thread in zip(nodes, threads, strict=True):
        node.terminate()
        thread.join(60)
        assert node.wait(60) == 0 and node.stderr is not None
        assert "ended: a signal" in node.stderr.read()
    with open_processes(tmp_path) as database:
        samples = database.samples("suite-1")
    assert {one.pid for one in samples if one.role == "yarn_nodemanager"} == set(managers)
    containers = {one.container for one in samples if one.role == "java_executor"}
    assert len(containers) == 2 and None not in containers
    assert {one.role for one in samples} >= {"yarn_launcher", "java_executor", "python_worker"}
    # What a container starts is told with its container.
    assert {one.container for one in samples if one.role == "python_worker"} <= containers
    assert all(one.rss_bytes for one in samples if one.role == "java_executor")
