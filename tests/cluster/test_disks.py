"""A full local disk of a node, where Spark keeps shuffled rows: other nodes are used,
or the run ends with 73.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import configuration
from tests.cluster.conftest import World, assert_same, reading
from tests.cluster.test_faults import node_of
from tests.cluster.test_stages import confs, events, executors_of, tasks_stand_still

pytestmark = pytest.mark.cluster

JOB = "data_aggregation"
#: Room for the scripts, links and tokens of an application's containers on a node, and
#: for the package.
DISK_BYTES = 64 << 20


@pytest.fixture()
def small_disk(world: World) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk where a node has the local files of applications. Returns it
    as this process sees it.
    """
    if not world.cluster.hides:
        pytest.skip("a disk of its own takes the right to mount")
    mounted: list[list[str]] = []

    def mount(node: str) -> Path:
        folder = (
            world.cluster.folder / f"data/{node}/local/usercache/{configuration.user()}/appcache"
        )
        folder.mkdir(parents=True, exist_ok=True)
        # The node has mounts of its own: see daemons.Cluster.
        inside = ["nsenter", f"--target={world.cluster.pid(node)}", "--mount"]
        options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none"]
        subprocess.run([*inside, "mount", *options, str(folder)], check=True)
        mounted.append([*inside, "umount", "--lazy", str(folder)])
        return Path(f"/proc/{world.cluster.pid(node)}/root{folder}")

    yield mount
    for command in mounted:
        subprocess.run(command, check=False)


def fill(disk: Path) -> None:
    """Write until there is no room."""
    with (disk / "full").open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_full_local_disk_of_the_only_node_is_73_and_the_result_before_stays(
    world: World, small_disk: Callable[[str], Path]
) -> None:
    folder = "/cms/disks/one"
    assert world.run(*world.on_yarn(JOB, f"hdfs://{folder}")).code == 0
    pointer = f"{folder}/{JOB}/2026-01-15/CURRENT"
    before = world.cluster.hdfs.read(pointer)
    disk = small_disk("nodemanager")
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}"))
    world.until(running, lambda: bool(reading(world)), "a task")
    with tasks_stand_still(world):
        fill(disk)
    ended = world.end(running)
    assert ended.code == 73
    assert "No space left on device" in ended.err and "spark.local.dir" in ended.err
    assert world.cluster.hdfs.read(pointer) == before
    assert_same(world, JOB, world.fetched(folder))


@pytest.mark.usefixtures("two_nodes")
def test_tasks_of_a_node_whose_local_disk_is_full_run_on_another_one_and_are_named(
    world: World, small_disk: Callable[[str], Path]
) -> None:
    folder, node = "/cms/disks/two", "nodemanager-2"
    disk = small_disk(node)
    # A node has room for one such executor, which runs one task at once.
    large = confs("spark.executor.memoryOverhead=2700m", "spark.executor.cores=1")
    words = [*executors_of(2), *large, *confs("spark.excludeOnFailure.enabled=true")]
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *words))
    world.until(running, lambda: bool(reading(world)), "a task")
    # The other node may have its executor first: the other tasks wait for this one's.
    with tasks_stand_still(world):
        world.until(running, lambda: node in map(node_of, reading(world)), f"a task of {node}")
        fill(disk)
    assert world.end(running).code == 0
    repeated = [event for event in events(world, folder) if event["event"] == "tasks_repeated"]
    assert repeated and all("No space left on device" in event["reason"] for event in repeated), (
        repeated
    )
