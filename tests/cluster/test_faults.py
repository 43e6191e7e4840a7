"""What becomes of a job when parts of the cluster end under it (group C of docs/faults.md).

After each fault the job finishes right, or fails with a message that says what to do
and a code of its own; the result that was there before stays readable, and the next run
finishes right.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.conftest import DAY, World, assert_same, containers, executors, kill, reading
from tests.cluster.daemons import until

pytestmark = pytest.mark.cluster

JOB = "data_aggregation"
FOUT = "hdfs:///cms/faults"
GREEDY = Path(__file__).with_name("scripts") / "greedy.py"
DAY_FOLDER = f"/cms/faults/{JOB}/{DAY.isoformat()}"


@pytest.fixture()
def counted(world: World) -> str:
    """The day is counted and stored; the run that its CURRENT names."""
    if "CURRENT" not in world.cluster.hdfs.names(DAY_FOLDER):
        assert world.run(*world.on_yarn(JOB, FOUT)).code == 0
    return current(world)


def current(world: World) -> str:
    return world.cluster.hdfs.read(f"{DAY_FOLDER}/CURRENT").decode()


def node_of(pid: int) -> str:
    """The NodeManager that started a container's process, by the folder that it works in."""
    place = os.readlink(f"/proc/{pid}/cwd")
    return "nodemanager-2" if "/data/nodemanager-2/" in place else "nodemanager"


def masters(world: World) -> list[int]:
    """The first container of an application in client mode."""
    return containers(world, b"org.apache.spark.deploy.yarn.ExecutorLauncher")


def stored_right(world: World) -> None:
    assert_same(world, JOB, world.fetched("/cms/faults"))


# Parts that end
# ----------------------------------------------------------------------------------------------------


def test_the_loss_of_an_executor_changes_no_cell(world: World) -> None:
    running = world.start(*world.on_yarn(JOB, FOUT))
    world.until(running, lambda: bool(reading(world)), "a task")
    kill(reading(world)[:1])
    ended = world.end(running)
    assert ended.code == 0
    stored_right(world)


@pytest.mark.usefixtures("two_nodes")
def test_the_loss_of_a_node_with_its_executors_changes_no_cell(world: World) -> None:
    two = [f"spark.dynamicAllocation.{which}Executors=2" for which in ("min", "initial", "max")]
    running = world.start(
        *world.on_yarn(JOB, FOUT, *(word for conf in two for word in ("--conf", conf)))
    )
    world.until(running, lambda: bool(reading(world)) and bool(masters(world)), "a task")
    other = "nodemanager" if node_of(masters(world)[0]) == "nodemanager-2" else "nodemanager-2"
    on_it = [pid for pid in executors(world) if node_of(pid) == other]
    world.cluster.stop(other, signal.SIGKILL)
    kill(on_it)
    ended = world.end(running)
    assert ended.code == 0
    stored_right(world)


@pytest.mark.usefixtures("two_nodes")
def test_a_node_that_dies_with_the_applications_master_ends_the_run_in_75(
    world: World, counted: str
) -> None:
    running = world.start(*world.on_yarn(JOB, FOUT))
    world.until(running, lambda: bool(reading(world)) and bool(masters(world)), "a task")
    (master,) = masters(world)
    node = node_of(master)
    on_it = [master, *(pid for pid in executors(world) if node_of(pid) == node)]
    world.cluster.stop(node, signal.SIGKILL)
    kill(on_it)
    ended = world.end(running)
    assert ended.code == 75
    assert "run_spark: Spark's application ended before the job did" in ended.err
    assert "a bug in cmsspark" not in ended.err
    assert current(world) == counted
    stored_right(world)


@pytest.mark.parametrize("seconds", [8, 0], ids=["a-while", "for-good"])
def test_a_datanode_that_stops_while_it_is_read(world: World, counted: str, seconds: int) -> None:
    running = world.start(
        *world.on_yarn(JOB, FOUT, "--conf", "spark.hadoop.dfs.client.retry.window.base=500")
    )
    world.until(running, lambda: bool(executors(world)), "an executor")
    world.cluster.stop("datanode", signal.SIGKILL)
    if seconds:
        world.until(running, lambda: bool(reading(world)), "a task")
        world.cluster.start("datanode")
    ended = world.end(running)
    world.cluster.start("datanode")
    world.cluster.wait()
    if seconds:
        assert ended.code == 0
    else:
        assert ended.code in (73, 75) and "a bug in cmsspark" not in ended.err
        assert current(world) == counted
    stored_right(world)


def test_a_quota_that_is_used_up_is_73_and_leaves_the_result(world: World, counted: str) -> None:
    hdfs = world.cluster.hdfs
    used = int(
        hdfs.call("GET", "/cms/faults", "GETCONTENTSUMMARY")["ContentSummary"]["spaceConsumed"]
    )
    hdfs.call(
        "PUT",
        "/cms/faults",
        "SETQUOTA",
        namespacequota="9223372036854775807",
        storagespacequota=str(used + 9),
    )
    try:
        ended = world.run(*world.on_yarn(JOB, FOUT))
    finally:
        hdfs.call("PUT", "/cms/faults", "SETQUOTA", namespacequota="-1", storagespacequota="-1")
    assert ended.code == 73
    assert "quota" in ended.err.lower() and "a bug in cmsspark" not in ended.err
    assert current(world) == counted
    stored_right(world)


def test_an_executor_over_its_memory_is_reported_with_what_to_raise(world: World) -> None:
    small = ("--conf", "spark.executor.memoryOverhead=384m", "--conf", "spark.task.maxFailures=1")
    ended = world.run(str(GREEDY), "--yarn", *small)
    assert ended.code == 75
    assert "physical memory" in ended.err and "spark.executor.memoryOverhead" in ended.err


# Things that do not fit
# --------------------------------------------------------------------------------------------


def test_the_same_day_twice_at_once_is_counted_by_one_and_the_other_says_who_does(
    world: World,
) -> None:
    first, late = world.count_twice_at_once(JOB, FOUT)
    assert late.code == 75
    assert "another process is working on" in late.err and "found: process " in late.err
    assert first.code == 0
    stored_right(world)


def test_a_tmp_folder_that_turns_final_while_it_is_read_is_65(world: World, counted: str) -> None:
    hdfs, folder = (
        world.cluster.hdfs,
        f"/project/monitoring/archive/xrootd/enr/gled/{DAY:%Y/%m/%d}",
    )
    hdfs.rename(folder, f"{folder}.tmp")
    try:
        running = world.start(*world.on_yarn(JOB, FOUT, "--allow-tmp"))
        world.until(running, lambda: bool(executors(world)), "an executor")
    finally:
        hdfs.rename(f"{folder}.tmp", folder)
    ended = world.end(running)
    assert ended.code in (65, 66)
    assert "a bug in cmsspark" not in ended.err and "gled" in ended.err
    assert current(world) == counted
    stored_right(world)


@pytest.mark.usefixtures("two_nodes")
def test_with_no_active_node_a_submission_ends_at_once(world: World) -> None:
    for node in ("nodemanager", "nodemanager-2"):
        world.cluster.stop(node)
    until(lambda: world.cluster.active_nodes() == 0, "no nodes")
    ended = world.run(*world.on_yarn(JOB, FOUT))
    assert ended.code == 75
    assert "no active node" in ended.err and "submitted" not in ended.err


@pytest.mark.usefixtures("two_nodes")
def test_what_no_node_starts_in_time_is_given_up_and_ended(world: World) -> None:
    for node in ("nodemanager", "nodemanager-2"):
        world.cluster.signal(node, signal.SIGSTOP)
    try:
        ended = world.run(*world.on_yarn(JOB, FOUT, "--start-within", "25"))
    finally:
        for node in ("nodemanager", "nodemanager-2"):
            world.cluster.signal(node, signal.SIGCONT)
    assert ended.code == 75
    assert "YARN did not start the application within 25 s" in ended.err
    assert [one["state"] for one in world.cluster.applications() if one["id"] in ended.err] == [
        "KILLED"
    ]


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_job_that_others_leave_no_room_for_an_executor_says_so_and_is_given_up(
    world: World, mode: str
) -> None:
    # With its driver here, or this job's beside it, the node has no room for one of ours.
    world.cluster.stop("nodemanager-2")
    until(lambda: world.cluster.active_nodes() == 1, "one node")
    script = world.folder / "busy.py"
    script.write_text(
        "import time\nfrom pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\ntime.sleep(600)\n"
    )
    room = ("--conf", "spark.executor.memory=2g", "--conf", "spark.executor.instances=1")
    busy = world.start(
        str(script), "--yarn", *room, "--conf", "spark.dynamicAllocation.enabled=false"
    )
    world.until(busy, lambda: bool(executors(world)), "an executor of another application")
    words = ("--deploy-mode", mode, "--start-within", "60")
    ended = world.run(*world.on_yarn(JOB, FOUT, *words))
    world.shell(busy)
    assert ended.code == 75 and "waits for an executor: it asks for 1.6 GB" in ended.err
    assert "gave the application no executor within 60 s" in ended.err


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_namenode_that_dies_under_a_job_ends_it_in_75_and_leaves_the_result(
    world: World, counted: str, mode: str
) -> None:
    running = world.start(*world.on_yarn(JOB, FOUT, "--deploy-mode", mode))
    world.until(running, lambda: bool(executors(world)), "an executor")
    world.cluster.stop("namenode", signal.SIGKILL)
    ended = world.end(running)
    assert ended.code == 75 and "next: " in ended.err and "LeaseRenewer" not in ended.err
    world.cluster.start("namenode")
    world.cluster.wait()
    assert current(world) == counted
    stored_right(world)


def test_a_driver_that_the_nodes_cannot_reach_is_reported_with_the_setting(world: World) -> None:
    unreachable = ("--conf", "spark.driver.host=127.0.0.9", "--conf", "spark.yarn.am.waitTime=10s")
    ended = world.run(*world.on_yarn(JOB, FOUT, *unreachable))
    assert ended.code == 78 and "the cluster's nodes must reach the driver" in ended.err
    assert "Failed to connect to /127.0.0.9" in ended.err
    assert "set spark.driver.host" in ended.err and "a bug in cmsspark" not in ended.err
