"""The process trees of two real NodeManagers, sent to a collector while a job runs in
their containers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.apps.monitor.processes.collector import Collector
from cmsspark.store.process_samples import WatchedRun, open_processes
from tests.cluster.conftest import ROOT, World

pytestmark = pytest.mark.cluster

LOOKS = Path(__file__).with_name("scripts") / "looks.py"
TOKEN = "a-token-of-these-tests-0123456789"


@pytest.mark.usefixtures("two_nodes")
def test_two_nodemanagers_are_watched_with_the_containers_that_they_start(
    world: World, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    with open_processes(tmp_path) as database:
        database.put_run(WatchedRun("suite-1", 1, "here"))
    collector = Collector(tmp_path, TOKEN)
    collector.start()
    try:
        managers = [world.cluster.pid(name) for name in ("nodemanager", "nodemanager-2")]
        assert None not in managers
        nodes = [
            world.start(
                *(
                    "monitor",
                    "node",
                    "--collector",
                    collector.url,
                    "--token-file",
                    str(token),
                    "--run",
                    "suite-1",
                ),
                *(
                    "--pid",
                    str(pid),
                    "--interval",
                    "0.5",
                    "--ttl",
                    "900",
                    "--buffer",
                    str(tmp_path / f"buffer-{pid}"),
                ),
                program="from cmsspark.main import main; main()",
            )
            for pid in managers
        ]
        executors = ("--num-executors", "2", "--conf", "spark.dynamicAllocation.enabled=false")
        assert world.run(str(LOOKS), "--yarn", *executors, str(ROOT / "setup.py")).code == 0
        with open_processes(tmp_path) as database:
            database.put_run(WatchedRun("suite-1", 1, "here", end_ms=2, status="DONE"))
        for node in nodes:
            ended = world.end(node)
            assert ended.code == 0 and "ended: its run has ended (DONE)" in ended.err
    finally:
        collector.close()
    with open_processes(tmp_path) as database:
        samples = database.samples("suite-1")
    assert {one.pid for one in samples if one.role == "yarn_nodemanager"} == set(managers)
    containers = {one.container for one in samples if one.role == "java_executor"}
    assert len(containers) == 2 and None not in containers
    assert {one.role for one in samples} >= {"yarn_launcher", "java_executor", "python_worker"}
    # What a container starts is told with its container.
    assert {one.container for one in samples if one.role == "python_worker"} <= containers
    assert all(one.rss_bytes for one in samples if one.role == "java_executor")
