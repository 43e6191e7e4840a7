"""Executors that are lost while a stage runs, and tasks that run twice: the same cells, named in the manifest.

One application of the day loses an executor while logs are read, the next while rows are merged; another has
speculative copies of its tasks.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cmsspark.submit.run_command import descendants, with_signal
from tests.cluster.conftest import World, assert_same, executors, kill, reading

pytestmark = pytest.mark.cluster

JOB = "data_aggregation"
#: Two executors, so that one goes on.
TWO = [f"spark.dynamicAllocation.{which}Executors=2" for which in ("min", "initial", "max")]
#: A task of more than a second is copied, also where its stage has no other.
COPIES = [
    *("spark.speculation=true", "spark.speculation.task.duration.threshold=1s"),
    *("spark.speculation.interval=100ms", "spark.speculation.minTaskRuntime=1ms"),
]


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
def test_an_executor_that_is_lost_in_a_stage_is_named_and_changes_no_cell(world: World, stage: str) -> None:
    folder = f"/cms/stages/{stage}"
    before = shuffled(world)
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *confs(*TWO)))
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


def test_speculative_copies_change_no_cell_and_are_named(world: World) -> None:
    folder = "/cms/stages/copies"
    running = world.start(*world.on_yarn(JOB, f"hdfs://{folder}", *confs(*TWO, *COPIES)))
    # Tasks that stand still for some seconds are copied.
    world.until(running, lambda: bool(reading(world)), "a task")
    stopped = reading(world)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in stopped:
            signal_python(pid, number)
        time.sleep(8 if number == signal.SIGSTOP else 0)
    assert world.end(running).code == 0
    copies = [event for event in events(world, folder) if event["event"] == "speculative_copies"]
    assert copies and all(event["tasks"] > 0 for event in copies)


def signal_python(pid: int, number: int) -> None:
    """Send a signal to the Python processes of an executor. Its JVM answers, so it is not lost."""
    for child in descendants(pid):
        with_signal(child, number)
