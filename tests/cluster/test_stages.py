"""Executors that are lost or preempted, and tasks that run twice: the same cells, and
named in the manifest.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cmsspark.submit.run_command import descendants, with_signal
from tests.cluster.conftest import World, assert_same, executors, kill, reading
from tests.cluster.daemons import until

pytestmark = pytest.mark.cluster

JOB = "data_aggregation"
IDLES = Path(__file__).with_name("scripts") / "idles.py"


def executors_of(count: int) -> list[str]:
    """The options that ask for so many executors."""
    return confs(
        *(
            f"spark.dynamicAllocation.{which}Executors={count}"
            for which in ("min", "initial", "max")
        )
    )


def confs(*options: str) -> list[str]:
    return [word for option in options for word in ("--conf", option)]


def events(world: World, folder: str) -> list[dict[str, Any]]:
    """What the manifest says befell the run, whose cells are those of this host."""
    manifest = assert_same(world, JOB, world.fetched(folder))
    found: list[dict[str, Any]] = manifest.get("cluster_events", [])
    return found


def test_a_run_without_a_fault_names_no_event(world: World) -> None:
    assert world.run(*world.on_yarn(JOB, "hdfs:///cms/stages/plain")).code == 0
    assert events(world, "/cms/stages/plain") == []


@pytest.mark.parametrize("stage", ["read", "merged"])
def test_an_executor_that_is_lost_in_a_stage_is_named_and_changes_no_cell(
    world: World, stage: str
) -> None:
    folder = f"/cms/stages/{stage}"
    before = shuffled(world)
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *executors_of(2)))
    world.until(running, lambda: bool(reading(world)), "a task")
    if stage == "merged":
        world.until(running, lambda: bool(shuffled(world) - before), "rows to merge")
    kill(executors(world)[:1])
    assert world.end(running).code == 0
    lost = [event for event in events(world, folder) if event["event"] == "executor_lost"]
    assert len(lost) == 1 and lost[0]["host"] and lost[0]["reason"], lost


def shuffled(world: World) -> set[Path]:
    """The files with rows that tasks have written for the merge."""
    pattern = "data/nodemanager*/local/usercache/*/appcache/*/blockmgr-*/*/shuffle_*.index"
    return set(world.cluster.folder.glob(pattern))


@contextmanager
def tasks_stand_still(world: World) -> Iterator[None]:
    """Stop the Python processes of all executors for the block. Their JVMs answer, so
    none is lost for it.
    """
    stopped = [child for pid in executors(world) for child in descendants(pid)]
    for pid in stopped:
        with_signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with_signal(pid, signal.SIGCONT)


def test_a_preempted_executor_changes_no_cell_and_is_named(world: World) -> None:
    folder = "/cms/stages/preempted"
    # The node has room for three executors, which is more than the half of this queue.
    queue = confs("spark.yarn.queue=cms")
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *executors_of(3), *queue))
    world.until(
        running,
        lambda: bool(reading(world)) and len(executors(world)) == 3,
        "tasks and three executors",
    )
    own = set(executors(world))
    with tasks_stand_still(world):
        idle = confs("spark.yarn.queue=default", "spark.dynamicAllocation.executorIdleTimeout=1s")
        other = world.start(str(IDLES), "--yarn", *idle)
        until(lambda: not own <= set(executors(world)), "an executor that is preempted")
    assert world.end(running).code == 0
    world.end(other)
    reasons = [
        event.get("reason", "")
        for event in events(world, folder)
        if event["event"] == "executor_lost"
    ]
    assert any("preempted" in reason for reason in reasons), reasons


@pytest.mark.usefixtures("two_nodes")
def test_speculative_copies_change_no_cell_and_are_named(world: World) -> None:
    folder = "/cms/stages/copies"
    # Copies run on another host, and a node has room for three executors. A task is
    # copied after a second.
    slow = confs("spark.speculation=true", "spark.speculation.task.duration.threshold=1s")
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *executors_of(5), *slow))
    world.until(
        running,
        lambda: bool(reading(world)) and len(executors(world)) == 5,
        "tasks and five executors",
    )
    with tasks_stand_still(world):
        before = len(reading(world))
        until(lambda: len(reading(world)) > before, "a copy", 30)
    assert world.end(running).code == 0
    copies = [event for event in events(world, folder) if event["event"] == "speculative_copies"]
    assert copies and all(event["tasks"] > 0 for event in copies)
