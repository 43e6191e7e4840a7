"""The day on a real YARN over HDFS with as few submits as may be: the tests of the
cluster that CI runs.

A submit takes as long as some hundred other tests, so each of these runs stands for
several: the one in cluster mode loses an executor, and the one in client mode follows a
driver that was killed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cmsspark.filesystems.hdfs import CLIENT_KEY
from tests.cluster.conftest import (
    DAY,
    READABLE,
    World,
    application,
    assert_cheap,
    assert_same,
    executors,
    kill,
    reading,
)

pytestmark = [pytest.mark.cluster, pytest.mark.lean]

JOB = "data_aggregation"
#: Results lie in another namespace than the logs.
NAMENODE, FOLDER = "namenode-2", "/cms/lean"


@pytest.fixture(scope="module")
def counted(world: World) -> str:
    """The day is counted in cluster mode, by a run that loses an executor; the run that
    its CURRENT names.

    Spark's JVM reads the logs, as without the extra for HDFS.
    """
    java = ("--conf", f"{CLIENT_KEY}=java")
    running = world.start(
        *world.on_yarn(JOB, fout(world), "--deploy-mode", "cluster", *java, *READABLE)
    )
    with application(world) as found:
        world.until(running, lambda: bool(reading(world)), "a task")
        lost = reading(world)[:1]
        kill(lost)
        ended = world.end(running)
    assert ended.code == 0
    assert re.search(r"run_spark: application_\d+_\d+ succeeded\n", ended.err)
    assert not set(lost) & set(executors(world))
    # It makes the index, which takes a job; a lost executor takes stages again, no job.
    assert found[0].jobs == 2
    return current(world)


def fout(world: World) -> str:
    return f"{world.cluster.uri(NAMENODE)}{FOLDER}"


def current(world: World) -> str:
    return (
        world.cluster.hdfs_of(NAMENODE).read(f"{FOLDER}/{JOB}/{DAY.isoformat()}/CURRENT").decode()
    )


def stored(world: World) -> Path:
    """The results, copied to this host."""
    return world.fetched(FOLDER, NAMENODE)


def test_in_cluster_mode_the_loss_of_an_executor_changes_no_cell(
    world: World, counted: str
) -> None:
    assert_same(world, JOB, stored(world))
    assert current(world) == counted


def test_in_client_mode_a_killed_driver_leaves_the_result_and_the_next_run_clears_up(
    world: World, counted: str
) -> None:
    world.kill_while_staging(JOB, fout(world), NAMENODE)
    assert current(world) == counted
    assert_same(world, JOB, stored(world))
    with application(world) as found:
        again = world.run(*world.on_yarn(JOB, fout(world), *READABLE))
    assert again.code == 0 and "removed leftovers of a killed run" in again.err
    assert re.search(r"run_spark: submitted to YARN as application_\d+_\d+\n", again.err)
    assert re.search(r"run_spark: follow it at http://\S+/proxy/application_\d+_\d+/\n", again.err)
    assert current(world) != counted
    manifest = assert_same(world, JOB, stored(world))
    assert manifest["join"] == "index"
    # The killed run has made the index.
    assert_cheap(found[0], manifest, may_build_index=False)
    assert manifest["inputs"][0]["files"][0][0].startswith(world.cluster.uri("namenode"))
